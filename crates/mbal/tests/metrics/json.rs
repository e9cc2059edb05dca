//! JSON as whoever gets it reads it: strictly, to the last byte.

pub use serde_json::Value;

/// Of a name that stands twice in an object a reader takes whichever it likes.
pub fn read(text: &str) -> Value {
    let value: Value = serde_json::from_str(text).expect("it is JSON");
    assert_eq!(names(&value), text.matches("\":").count(), "a name twice: {text}");
    value
}

fn names(value: &Value) -> usize {
    match value {
        Value::Object(fields) => fields.len() + fields.values().map(names).sum::<usize>(),
        Value::Array(list) => list.iter().map(names).sum(),
        _ => 0,
    }
}

pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no string"))
}

pub fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

pub fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list"))
}
