//! JSON as whoever gets it reads it: strictly, to the last byte.

use std::collections::BTreeMap;
use std::ops::Index;

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Value>),
    Object(BTreeMap<String, Value>),
}

impl Value {
    pub fn of(text: &str) -> Value {
        let mut parser = Parser { rest: text };
        let value = parser.value();
        assert_eq!(parser.rest.trim_start(), "", "behind the value");
        value
    }

    pub fn number(&self) -> f64 {
        let Value::Number(number) = self else { panic!("{self:?} is no number") };
        *number
    }

    pub fn text(&self) -> &str {
        let Value::Text(text) = self else { panic!("{self:?} is no string") };
        text
    }

    pub fn list(&self) -> &[Value] {
        let Value::List(list) = self else { panic!("{self:?} is no list") };
        list
    }

    pub fn get(&self, name: &str) -> Option<&Value> {
        let Value::Object(fields) = self else { panic!("{self:?} is no object") };
        fields.get(name)
    }
}

impl Index<&str> for Value {
    type Output = Value;

    fn index(&self, name: &str) -> &Value {
        self.get(name).unwrap_or_else(|| panic!("no {name} in {self:?}"))
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
    fn takes(&mut self, token: &str) -> bool {
        let rest = self.rest.trim_start_matches([' ', '\n', '\r', '\t']);
        self.rest = rest.strip_prefix(token).unwrap_or(rest);
        self.rest.len() < rest.len()
    }

    fn value(&mut self) -> Value {
        if self.takes("{") {
            let mut fields = BTreeMap::new();
            while !self.takes("}") {
                assert!(fields.is_empty() || self.takes(","), "no comma: {}", self.rest);
                assert!(self.takes("\""), "no name: {}", self.rest);
                let name = self.string();
                assert!(self.takes(":"), "no colon: {}", self.rest);
                let value = self.value();
                assert_eq!(fields.insert(name, value), None, "a name twice");
            }
            return Value::Object(fields);
        }
        if self.takes("[") {
            let mut list = Vec::new();
            while !self.takes("]") {
                assert!(list.is_empty() || self.takes(","), "no comma: {}", self.rest);
                list.push(self.value());
            }
            return Value::List(list);
        }
        if self.takes("\"") {
            return Value::Text(self.string());
        }
        for (word, value) in
            [("null", Value::Null), ("true", Value::Bool(true)), ("false", Value::Bool(false))]
        {
            if self.takes(word) {
                return value;
            }
        }
        let end = self.rest.find(|c: char| !"+-.eE0123456789".contains(c));
        let (number, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        Value::Number(number.parse().unwrap_or_else(|_| panic!("no value: {number}{rest}")))
    }

    /// Behind its first quote.
    fn string(&mut self) -> String {
        let mut text = String::new();
        let mut characters = self.rest.chars();
        loop {
            match characters.next().expect("a string ends") {
                '"' => break,
                '\\' => text.push(match characters.next().expect("something is escaped") {
                    'n' => '\n',
                    'u' => {
                        let digits: String = characters.by_ref().take(4).collect();
                        let code = u32::from_str_radix(&digits, 16).expect("four digits");
                        char::from_u32(code).expect("no half of a pair")
                    }
                    itself @ ('"' | '\\' | '/') => itself,
                    other => panic!("\\{other}"),
                }),
                control if control < ' ' => panic!("a control character as it is"),
                character => text.push(character),
            }
        }
        self.rest = characters.as_str();
        text
    }
}
