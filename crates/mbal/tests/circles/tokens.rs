//! Source as its words.

/// Names, `::`, and other signs one by one; without comments, texts, characters and lifetimes.
pub fn tokens(text: &str) -> Vec<String> {
    let in_name = |char: char| char.is_alphanumeric() || char == '_';
    let mut tokens: Vec<String> = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let starts = |all: &[&str]| all.iter().any(|one| rest.starts_with(one));
        let (is_kept, length) = match first {
            _ if starts(&["//"]) => (false, rest.find('\n').unwrap_or(rest.len())),
            _ if starts(&["/*"]) => (false, rest.find("*/").unwrap() + 2),
            _ if starts(&["r\"", "r#\"", "br\"", "br#\""]) => {
                let quote = rest.find('"').unwrap();
                let end = if rest[..quote].ends_with('#') { "\"#" } else { "\"" };
                (false, quote + 1 + rest[quote + 1..].find(end).unwrap() + end.len())
            }
            '"' => (false, 1 + quoted(&rest[1..], '"')),
            '\'' if starts(&["'\\"]) || rest.chars().nth(2) == Some('\'') => {
                (false, 1 + quoted(&rest[1..], '\''))
            }
            '\'' => (false, 1 + rest[1..].find(|char| !in_name(char)).unwrap()),
            _ if in_name(first) => (true, rest.find(|char| !in_name(char)).unwrap_or(rest.len())),
            _ if starts(&["::", "->", "=>"]) => (true, 2),
            _ => (!first.is_whitespace(), first.len_utf8()),
        };
        if is_kept {
            tokens.push(rest[..length].to_owned());
        }
        rest = &rest[length..];
    }
    tokens
}

/// Bytes up to the end of a text, that included.
fn quoted(text: &str, end: char) -> usize {
    let mut is_escaped = false;
    let found = text.char_indices().find(|(_, char)| {
        let is_end = *char == end && !is_escaped;
        is_escaped = *char == '\\' && !is_escaped;
        is_end
    });
    found.unwrap().0 + 1
}

/// Without what stands behind `#[cfg(test)]`, and without attributes.
pub fn without_tests(tokens: Vec<String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let is_attribute =
            tokens[at] == "#" && tokens[at + 1..].iter().take(2).any(|token| token == "[");
        if !is_attribute {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        let end = at + after(&tokens[at..], "[", "]");
        let text = tokens[at..end].concat();
        at = end;
        if text.starts_with("#[cfg(test)") || text.starts_with("#[cfg(all(test,") {
            // Up to the end of the item: its block, or its semicolon.
            while tokens[at] == "#" {
                at += after(&tokens[at..], "[", "]");
            }
            let end =
                tokens[at..].iter().position(|token| token == "{" || token == ";").unwrap() + at;
            at = if tokens[end] == ";" { end + 1 } else { end + after(&tokens[end..], "{", "}") };
        }
    }
    kept
}

/// How many tokens there are up to the one that closes what opens first.
fn after(tokens: &[String], open: &str, close: &str) -> usize {
    let mut depth = 0;
    let end = tokens.iter().position(|token| {
        depth += i32::from(token == open) - i32::from(token == close);
        depth == 0 && token == close
    });
    end.unwrap() + 1
}

/// A tree of a `use`: names, and their paths.
pub fn expand(tree: &[String], before: Vec<String>, into: &mut Vec<(String, Vec<String>)>) {
    let mut path = before;
    for (at, token) in tree.iter().enumerate() {
        match token.as_str() {
            "::" => {}
            "{" => {
                let (mut depth, mut start) = (0, at + 1);
                for (index, token) in tree.iter().enumerate().skip(at) {
                    depth += i32::from(token == "{") - i32::from(token == "}");
                    if depth == 0 || depth == 1 && token == "," {
                        if start < index {
                            expand(&tree[start..index], path.clone(), into);
                        }
                        start = index + 1;
                    }
                }
                return;
            }
            "as" => {
                into.push((tree[at + 1].clone(), path));
                return;
            }
            "*" => {
                into.push(("*".to_owned(), path));
                return;
            }
            "self" if !path.is_empty() => {}
            name => path.push(name.to_owned()),
        }
    }
    into.push((path.last().cloned().unwrap_or_default(), path));
}
