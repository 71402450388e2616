//! One line of a control file: a verb, words, and `key=value` pairs.
//!
//! Quoted as a POSIX shell quotes, or a JSON object with `verb`, `args` and the keys.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::model::{Refusal, Rule};

/// The most bytes that one write may carry.
pub const WRITE_LIMIT: usize = 64 * 1024;

/// A command as it was spelled, before anybody knows what it means.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line {
    /// The first word.
    pub verb: String,
    /// The other words, in order.
    pub words: Vec<String>,
    /// The `key=value` pairs.
    pub keys: BTreeMap<String, String>,
}

impl Line {
    /// Reads one line without its newline; none for a blank line or a comment.
    ///
    /// # Errors
    /// [`Rule::ArgumentInvalid`] for what can't be read as a command at all, and
    /// [`Rule::ArgumentMissing`] for a JSON object without a verb.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, Refusal> {
        let text = std::str::from_utf8(bytes).map_err(|_| {
            malformed(
                "the line is not UTF-8",
                "Write commands as UTF-8 text, one a line.",
            )
        })?;
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            return Ok(None);
        }
        if text.starts_with('{') {
            return from_json(text).map(Some);
        }
        let words = shell_words::split(text).map_err(|_| {
            malformed(
                "a quote is not closed",
                "Close the quotes: a command ends where its line ends.",
            )
        })?;
        Self::from_words(words).map(Some)
    }

    fn from_words(words: Vec<String>) -> Result<Self, Refusal> {
        let mut line = Self::default();
        let mut words = words.into_iter();
        line.verb = words.next().unwrap_or_default();
        for word in words {
            match word.split_once('=') {
                Some((key, value)) if is_key(key) => line.add_key(key, value.to_owned())?,
                _ => line.words.push(word),
            }
        }
        Ok(line)
    }

    fn add_key(&mut self, key: &str, value: String) -> Result<(), Refusal> {
        match self.keys.insert(key.to_owned(), value) {
            None => Ok(()),
            Some(_) => Err(malformed(
                format!("{key} is given twice"),
                format!("Give {key} once."),
            )),
        }
    }

    /// Adds the keys of a JSON object; those of a nested object get its name before a dot.
    fn add_object(&mut self, prefix: &str, object: &Map<String, Value>) -> Result<(), Refusal> {
        for (name, value) in object {
            let key = format!("{prefix}{name}");
            match value {
                Value::Null => {}
                Value::Object(nested) => self.add_object(&format!("{key}."), nested)?,
                value => self.add_key(&key, scalar(&key, value)?)?,
            }
        }
        Ok(())
    }
}

fn from_json(text: &str) -> Result<Line, Refusal> {
    let parsed: Value = serde_json::from_str(text).map_err(|error| {
        malformed(
            format!("the line is no JSON object: {error}"),
            r#"Write it whole on one line, for instance {"verb":"allocate","args":["c7"]}."#,
        )
    })?;
    let Value::Object(mut object) = parsed else {
        return Err(malformed(
            "the line is JSON, but no object",
            r#"Write an object, for instance {"verb":"list","args":["windows"]}."#,
        ));
    };
    let verb = match object.remove("verb") {
        Some(Value::String(verb)) => verb,
        Some(_) => return Err(malformed("verb is not a string", "Give verb as a string.")),
        None => {
            return Err(Refusal::new(
                Rule::ArgumentMissing,
                "the object has no verb",
                "Add \"verb\"; `help` lists them.",
            ));
        }
    };
    let mut line = Line {
        verb,
        ..Line::default()
    };
    match object.remove("args") {
        None | Some(Value::Null) => {}
        Some(Value::Array(args)) => {
            for arg in &args {
                line.words.push(scalar("args", arg)?);
            }
        }
        Some(arg) => line.words.push(scalar("args", &arg)?),
    }
    match object.remove("keys") {
        None | Some(Value::Null) => {}
        Some(Value::Object(keys)) => line.add_object("", &keys)?,
        Some(_) => {
            return Err(malformed(
                "keys is not an object",
                "Give keys as an object.",
            ));
        }
    }
    line.add_object("", &object)?;
    Ok(line)
}

/// A JSON value as the text that a word would have; a list as its items with commas between.
fn scalar(key: &str, value: &Value) -> Result<String, Refusal> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(flag) => Ok(flag.to_string()),
        Value::Array(items) if key != "args" => {
            let items: Result<Vec<_>, _> = items.iter().map(|item| scalar("args", item)).collect();
            Ok(items?.join(","))
        }
        _ => Err(malformed(
            format!("a value of {key} is neither text, a number, true nor false"),
            "Give plain values.",
        )),
    }
}

/// Whether the part before a `=` names a parameter: so that a path may contain a `=`.
fn is_key(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
}

fn malformed(message: impl Into<String>, next_action: impl Into<String>) -> Refusal {
    Refusal::new(Rule::ArgumentInvalid, message, next_action)
}

/// The refusal of a write that is longer than [`WRITE_LIMIT`].
pub fn too_long(length: usize) -> Refusal {
    Refusal::new(
        Rule::LineTooLong,
        format!("the write has {length} bytes, and at most {WRITE_LIMIT} are taken"),
        "Write fewer commands at once, and shorter ones.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Line {
        Line::parse(text.as_bytes()).unwrap().unwrap()
    }

    #[test]
    fn words_and_keys_are_quoted_as_in_a_shell() {
        let line = parse(r#"allocate c7 title="fix login" 'a b' x\ y k='1=2'"#);
        assert_eq!(line.verb, "allocate");
        assert_eq!(line.words, ["c7", "a b", "x y"]);
        assert_eq!(line.keys["title"], "fix login");
        assert_eq!(line.keys["k"], "1=2");
        // No key stands before this equals sign.
        assert_eq!(parse("cd c1 ./a=b").words, ["c1", "./a=b"]);
        assert_eq!(parse("show c1\r"), parse("show c1"));
    }

    #[test]
    fn json_says_the_same_as_words() {
        let words = parse("allocate c7 title='fix login' keep=true quota.files=100");
        for json in [
            r#"{"verb":"allocate","args":["c7"],"title":"fix login","keep":true,"quota":{"files":100}}"#,
            r#"{"verb":"allocate","args":"c7","keys":{"title":"fix login","keep":true,"quota.files":"100"},"owner":null}"#,
        ] {
            assert_eq!(parse(json), words);
        }
        assert_eq!(
            parse(r#"{"verb":"share","args":["ws1"],"with":["c1","c2"]}"#).keys["with"],
            "c1,c2"
        );
    }

    #[test]
    fn blank_lines_and_comments_are_nothing() {
        for text in ["", "   ", "\t", "# allocate c1", "  # x"] {
            assert_eq!(Line::parse(text.as_bytes()).unwrap(), None);
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for (bytes, rule) in [
            (&b"\xff\xfe"[..], Rule::ArgumentInvalid),
            (b"allocate title=\"open", Rule::ArgumentInvalid),
            (b"allocate title=a title=b", Rule::ArgumentInvalid),
            (b"{\"verb\":\"alloc", Rule::ArgumentInvalid),
            (b"{\"verb\":7}", Rule::ArgumentInvalid),
            (b"{}", Rule::ArgumentMissing),
            (b"{\"verb\":\"show\",\"args\":[{}]}", Rule::ArgumentInvalid),
            (b"{\"verb\":\"show\",\"keys\":[]}", Rule::ArgumentInvalid),
        ] {
            let refusal = Line::parse(bytes).unwrap_err();
            assert_eq!(refusal.rule, rule, "{}", refusal.message);
        }
    }
}
