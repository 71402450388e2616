//! The one JSON line that answers a command.

use serde::Serialize;
use serde_json::{Value, json};

use crate::model::{JobId, Refusal, Rule};

/// What a command that succeeded answers: `{"ok":true,…}` with the fields in the order given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The object, still open.
    json: String,
}

impl Reply {
    /// `{"ok":true}`
    pub fn ok() -> Self {
        Self {
            json: r#"{"ok":true"#.to_owned(),
        }
    }

    /// Adds a field; none is shown as null.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Serialize) -> Self {
        push_field(&mut self.json, key, &value);
        self
    }

    /// Adds every field of a reply that was kept as a value.
    #[must_use]
    pub fn with_all(mut self, kept: &Value) -> Self {
        for (key, value) in kept.as_object().into_iter().flatten() {
            if key != "ok" {
                push_field(&mut self.json, key, value);
            }
        }
        self
    }

    /// The reply as a value, for keeping.
    pub fn to_value(&self) -> Value {
        serde_json::from_str(&format!("{}}}", self.json)).unwrap_or(Value::Null)
    }

    /// The line, newline included.
    pub fn into_line(self) -> String {
        self.json + "}\n"
    }
}

fn push_field(json: &mut String, key: &str, value: &impl Serialize) {
    if !json.ends_with('{') {
        json.push(',');
    }
    json.push_str(&to_json(key));
    json.push(':');
    json.push_str(&to_json(value));
}

/// A value as JSON text.
pub fn to_json(value: impl Serialize) -> String {
    // Our values have text keys and finite numbers, which always serialize.
    serde_json::to_string(&value).unwrap_or_else(|_| "null".to_owned())
}

/// Why a command was refused, and the job that it was, if it was one.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Why.
    pub refusal: Refusal,
    /// Which job failed so.
    pub job: Option<JobId>,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, job: None }
    }
}

impl Failure {
    /// The line, newline included: `{"ok":false,"error":{…}}`, of a job with `job` and `state`.
    pub fn to_line(&self) -> String {
        let refusal = &self.refusal;
        let mut error = "{".to_owned();
        push_field(&mut error, "code", &refusal.rule.code().as_str());
        push_field(&mut error, "rule", &refusal.rule.as_str());
        push_field(&mut error, "message", &refusal.message);
        push_field(&mut error, "next_action", &refusal.next_action);
        for (key, value) in refusal.fields.iter() {
            push_field(&mut error, key, value);
        }
        let mut line = format!(r#"{{"ok":false,"error":{error}}}"#);
        if let Some(job) = self.job {
            push_field(&mut line, "job", &job);
            push_field(&mut line, "state", &json!("failed"));
        }
        line + "}\n"
    }
}

/// The refusal that a job ended with, from the `error` of the reply that was kept.
pub fn refusal_from(error: &Value) -> Refusal {
    let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
    let named = |rule: &&Rule| error["rule"] == rule.as_str();
    let rule = Rule::ALL.iter().find(named).copied();
    let mut refusal = Refusal::new(
        rule.unwrap_or(Rule::Internal),
        text("message"),
        text("next_action"),
    );
    for (key, value) in error.as_object().into_iter().flatten() {
        if !matches!(key.as_str(), "code" | "rule" | "message" | "next_action") {
            refusal = refusal.with(key, value.clone());
        }
    }
    refusal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_in_the_order_given() {
        let reply = Reply::ok().with("window", "c1").with("a", None::<u32>);
        assert_eq!(
            reply.to_value(),
            json!({"ok": true, "window": "c1", "a": null})
        );
        let again = Reply::ok().with_all(&reply.to_value()).with("job", 1);
        assert_eq!(
            reply.into_line(),
            "{\"ok\":true,\"window\":\"c1\",\"a\":null}\n"
        );
        assert!(again.into_line().ends_with(",\"job\":1}\n"));
    }

    #[test]
    fn a_failure_says_the_same_as_its_refusal() {
        let refusal = Refusal::new(Rule::WindowEnded, "m\n", "n").with("holder", "c2");
        let mut failure = Failure::from(refusal.clone());
        let line = failure.to_line();
        assert!(line.starts_with(r#"{"ok":false,"error":{"code":"stale","rule":"window.ended","#));
        assert_eq!(line.matches('\n').count(), 1);
        assert_eq!(
            serde_json::from_str::<Value>(&line).unwrap(),
            refusal.to_json()
        );
        assert_eq!(
            refusal_from(&refusal.to_json()["error"]).to_json(),
            refusal.to_json()
        );
        failure.job = JobId::new(3);
        let line: Value = serde_json::from_str(&failure.to_line()).unwrap();
        assert_eq!(
            (&line["job"], &line["state"]),
            (&json!("j3"), &json!("failed"))
        );
    }
}
