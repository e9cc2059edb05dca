//! A crate's modules, and who of them imports whom.

use std::collections::{BTreeMap, BTreeSet};

use crate::tokens::{expand, tokens, without_tests};

/// Names from the crate's root.
type ModulePath = Vec<String>;

/// A crate's source: the files that `mod` lines lead to, by their modules.
pub struct Code {
    modules: BTreeMap<ModulePath, Module>,
}

#[derive(Default)]
struct Module {
    file: String,
    /// Without comments, texts and tests.
    tokens: Vec<String>,
    uses: Vec<Use>,
    /// Paths that stand in the code.
    paths: Vec<Vec<String>>,
}

#[derive(Clone, Debug)]
struct Use {
    /// What it is called here; `*` is everything.
    name: String,
    path: Vec<String>,
    /// Who only passes a name on does not use it.
    passes_on: bool,
}

impl Code {
    pub fn of<const FILES: usize>(files: [(&str, &str); FILES]) -> Code {
        Code::new(files.map(|(file, text)| (file.to_owned(), text.to_owned())).into())
    }

    pub fn new(files: BTreeMap<String, String>) -> Code {
        let mut code = Code { modules: BTreeMap::new() };
        let root = if files.contains_key("lib.rs") { "lib.rs" } else { "main.rs" };
        code.add(&files, root, Vec::new());
        code
    }

    fn add(&mut self, files: &BTreeMap<String, String>, file: &str, path: ModulePath) {
        let module = Module::new(file, &files[file]);
        let children =
            module.tokens.windows(3).filter(|three| three[0] == "mod" && three[2] == ";");
        let children: Vec<String> = children.map(|three| three[1].clone()).collect();
        self.modules.insert(path.clone(), module);
        for child in children {
            let path = [path.clone(), vec![child]].concat();
            let place = path.join("/");
            let file = [format!("{place}.rs"), format!("{place}/mod.rs")]
                .into_iter()
                .find(|file| files.contains_key(file));
            self.add(
                files,
                &file.unwrap_or_else(|| panic!("no file has the module {place}")),
                path,
            );
        }
    }

    /// The module that defines what a path names, as `from` sees it; none of another crate's.
    fn defining(&self, from: &ModulePath, path: &[String], depth: usize) -> Option<ModulePath> {
        let mut at = from.clone();
        for (index, name) in path.iter().enumerate().take_while(|_| depth > 0) {
            let child = [at.clone(), vec![name.clone()]].concat();
            match name.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => drop(at.pop()),
                _ if self.modules.contains_key(&child) => at = child,
                _ => {
                    let rest = &path[index + 1..];
                    let uses = &self.modules[&at].uses;
                    let found = uses
                        .iter()
                        .filter(|one| one.name == *name || one.name == "*")
                        .find_map(|one| {
                            let tail = if one.name == "*" { &path[index..] } else { rest };
                            let found =
                                self.defining(&at, &[&one.path, tail].concat(), depth - 1)?;
                            let is_it = one.name != "*" || self.modules[&found].defines(name);
                            is_it.then_some(found)
                        });
                    return if index == 0 { found } else { Some(found.unwrap_or(at)) };
                }
            }
        }
        Some(at)
    }

    fn imports(&self, path: &ModulePath) -> BTreeSet<ModulePath> {
        let module = &self.modules[path];
        let uses = module
            .uses
            .iter()
            .filter(|one| !one.passes_on || module.names(&one.name))
            .map(|one| &one.path);
        let all = uses.chain(&module.paths).filter_map(|one| self.defining(path, one, 8));
        all.filter(|other| other != path).collect()
    }

    /// The files of which each imports each, be it by others.
    pub fn greatest_circle(&self) -> Vec<&str> {
        let imports: BTreeMap<&ModulePath, BTreeSet<ModulePath>> =
            self.modules.keys().map(|path| (path, self.imports(path))).collect();
        let reached = |from: &ModulePath| {
            let (mut reached, mut next) = (BTreeSet::new(), vec![from.clone()]);
            while let Some(path) = next.pop() {
                next.extend(imports[&path].iter().filter(|path| !reached.contains(*path)).cloned());
                reached.extend(imports[&path].iter().cloned());
            }
            reached
        };
        let reached: BTreeMap<&ModulePath, BTreeSet<ModulePath>> =
            self.modules.keys().map(|path| (path, reached(path))).collect();
        let circle = |path: &ModulePath| {
            let mutual = reached[path].iter().filter(|other| reached[other].contains(path));
            mutual.map(|path| self.modules[path].file.as_str()).collect::<Vec<&str>>()
        };
        self.modules.keys().map(circle).max_by_key(Vec::len).unwrap_or_default()
    }

    /// Fields of each struct, and files that have an `impl` of it.
    pub fn structs(&self) -> BTreeMap<String, (usize, usize)> {
        let mut all = BTreeMap::new();
        for module in self.modules.values() {
            for (name, fields) in module.structs() {
                let (most, _) = all.entry(name).or_insert((0, 0));
                *most = fields.max(*most);
            }
        }
        for name in self.modules.values().flat_map(Module::implemented) {
            if let Some((_, impls)) = all.get_mut(&name) {
                *impls += 1;
            }
        }
        all
    }
}

impl Module {
    fn new(file: &str, text: &str) -> Module {
        let mut module = Module {
            file: file.to_owned(),
            tokens: without_tests(tokens(text)),
            ..Module::default()
        };
        let tokens = &module.tokens;
        let is_name =
            |token: &String| token.starts_with(|first: char| first.is_alphabetic() || first == '_');
        // Modules that stand in this file are of it: there `super` leads no higher.
        let (mut inner, mut depth) = (Vec::new(), 0);
        let mut at = 0;
        while at < tokens.len() {
            match tokens[at].as_str() {
                "{" => depth += 1,
                "}" => {
                    depth -= 1;
                    if inner.last() == Some(&depth) {
                        inner.pop();
                    }
                }
                "mod" if tokens[at + 2] == "{" => inner.push(depth),
                _ => {}
            }
            let climbs = |path: &mut Vec<String>| {
                let up = path.iter().take_while(|name| *name == "super").count().min(inner.len());
                path.drain(..up);
            };
            // `use<>` of a type says which lifetimes it has.
            if tokens[at] == "use" && tokens[at + 1] != "<" {
                let end = at + tokens[at..].iter().position(|token| token == ";").unwrap();
                let mut uses = Vec::new();
                expand(&tokens[at + 1..end], Vec::new(), &mut uses);
                let passes_on = at > 0 && (tokens[at - 1] == "pub" || tokens[at - 1] == ")");
                for (name, mut path) in uses {
                    climbs(&mut path);
                    if !path.is_empty() {
                        module.uses.push(Use { name, path, passes_on });
                    }
                }
                at = end;
            } else if is_name(&tokens[at]) && tokens.get(at + 1).is_some_and(|next| next == "::") {
                let mut path = vec![tokens[at].clone()];
                while at + 2 < tokens.len() && tokens[at + 1] == "::" && is_name(&tokens[at + 2]) {
                    at += 2;
                    path.push(tokens[at].clone());
                }
                climbs(&mut path);
                module.paths.push(path);
            }
            at += 1;
        }
        module
    }

    fn defines(&self, name: &str) -> bool {
        let kinds = ["struct", "enum", "union", "trait", "type", "fn", "const", "static", "mod"];
        self.tokens.windows(2).any(|two| kinds.contains(&two[0].as_str()) && two[1] == name)
    }

    /// Also where it uses it.
    fn names(&self, name: &str) -> bool {
        let mut in_use = false;
        self.tokens.iter().any(|token| {
            in_use = token == "use" || in_use && token != ";";
            !in_use && token == name
        })
    }

    fn structs(&self) -> Vec<(String, usize)> {
        let at = (0..self.tokens.len()).filter(|at| self.tokens[*at] == "struct");
        at.map(|at| (self.tokens[at + 1].clone(), fields(&self.tokens[at + 2..]))).collect()
    }

    /// Types of which it has an `impl`.
    fn implemented(&self) -> BTreeSet<String> {
        let at = (0..self.tokens.len()).filter(|at| self.tokens[*at] == "impl");
        at.filter_map(|at| implemented(&self.tokens[at + 1..])).collect()
    }
}

/// Of a struct, after its name.
fn fields(tokens: &[String]) -> usize {
    let Some(start) = tokens.iter().position(|token| ["{", ";", "("].contains(&token.as_str()))
    else {
        return 0;
    };
    let (mut depth, mut count) = (0, 0);
    for (at, token) in tokens.iter().enumerate().skip(start) {
        match token.as_str() {
            "{" | "(" | "[" | "<" => depth += 1,
            "}" | ")" | "]" | ">" => depth -= 1,
            ":" if depth == 1 && tokens[start] == "{" => count += 1,
            _ => {}
        }
        if depth == 0 && at >= start {
            break;
        }
    }
    count
}

/// After `impl`: of which type it is.
fn implemented(tokens: &[String]) -> Option<String> {
    let (mut depth, mut name) = (0, None);
    for token in tokens {
        match token.as_str() {
            "<" => depth += 1,
            ">" => depth -= 1,
            "{" | "where" if depth == 0 => break,
            "for" if depth == 0 => name = None,
            "::" | "&" | "'" | "mut" | "dyn" => {}
            token if depth == 0 => name = Some(token.to_owned()),
            _ => {}
        }
    }
    name
}
