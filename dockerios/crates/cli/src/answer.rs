//! What was answered, or why nothing was, in words for the person who asked.
//!
//! Invariant: no type's name and no debug text of a library reaches a person; what others wrote does nothing to a
//! terminal.

use anyhow::anyhow;

/// Nothing was asked, or nobody answered: the way into the cluster is missing. Ends the program with 2.
#[derive(Debug)]
pub(crate) struct CannotBegin(pub(crate) String);

impl std::fmt::Display for CannotBegin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CannotBegin {}

/// Words on the command line that mean nothing here, found before anything was asked. As clap's own end with 2.
pub(crate) fn wrong_words(why: impl std::fmt::Display) -> anyhow::Error {
    CannotBegin(why.to_string()).into()
}

/// What the API server or the network said, for the person who asked.
pub(crate) fn said(error: kube::Error, doing: &str) -> anyhow::Error {
    match &error {
        kube::Error::Api(status) if status.code == 403 => {
            anyhow!("{doing}: {}; an admin can grant it (docs/admin.md)", words(&error))
        }
        kube::Error::Api(_) => anyhow!("{doing}: {}", words(&error)),
        kube::Error::SerdeError(_) => anyhow!(
            "{doing}: the answer could not be read ({}); is this plugin older than what is installed?",
            words(&error)
        ),
        _ => CannotBegin(format!(
            "{doing}: {}; is the cluster of your kubeconfig reachable? (kubectl cluster-info)",
            words(&error)
        ))
        .into(),
    }
}

/// The same in short, where what was done is said beside it.
pub(crate) fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if is_unserved(status) => {
            "the cluster does not serve this kind; DockerIOS's are installed by kubectl apply -f deploy/crds, KubeVirt's \
             and CDI's with those"
                .to_owned()
        }
        kube::Error::Api(status) if status.code == 401 => {
            "the cluster does not accept your credentials (401); log in anew, or choose another --context".to_owned()
        }
        kube::Error::Api(status) if status.message.trim().is_empty() => format!("answered {}", status.code),
        kube::Error::Api(status) => clipped(&status.message),
        // these two say nothing themselves
        kube::Error::Service(error) => clipped(&chain(&**error)),
        kube::Error::HyperError(error) => clipped(&chain(error)),
        other => clipped(&chain(other)),
    }
}

/// Whether nothing is served at the path: an object that is not there is named in the answer.
pub(crate) fn is_unserved(status: &kube::core::Status) -> bool {
    let named = status.details.as_ref().is_some_and(|details| !details.name.is_empty());
    status.code == 404 && !named
}

/// Whether the cluster does not serve the kind that was asked for.
pub(crate) fn is_kind_unserved(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if is_unserved(status))
}

/// An error with its causes, each said once.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        next = error.source();
        // hyper-util's word for "see the cause"
        let says_nothing = text.starts_with("client error (") && next.is_some();
        if !says_nothing && !parts.last().is_some_and(|before| before.contains(&text)) {
            parts.push(text);
        }
    }
    parts.join(": ")
}

/// A line that may be shown: a proxy may answer with a whole page.
fn clipped(text: &str) -> String {
    const LONGEST: usize = 600;
    let text = plain(text.trim());
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// `text` as a terminal may show it: what others wrote moves no cursor, begins no line and turns no text round.
pub(crate) fn plain(text: &str) -> String {
    let spaced = |c: char| if matches!(c, '\n' | '\r' | '\t') { ' ' } else { c };
    harmless(&text.chars().map(spaced).collect::<String>())
}

/// Lines as a terminal may show them: only their own ends move the cursor.
pub(crate) fn harmless(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' | '\t' => c,
        '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' => {
            '\u{fffd}'
        }
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_repeated_and_silence_is_explained() {
        let refusal = kube::Error::Api(Box::new(kube::core::Status::failure("macs is forbidden", "Forbidden")));
        assert_eq!(said(refusal, "reading it").to_string(), "reading it: macs is forbidden");
        let silent = kube::Error::Service("no route to host".into());
        let silent = said(silent, "reading it");
        assert!(silent.is::<CannotBegin>(), "nobody answered: {silent}");
        assert!(
            silent
                .to_string()
                .starts_with("reading it: no route to host; is the cluster"),
            "{silent}"
        );
    }

    #[test]
    fn a_kind_that_is_not_served_is_told_from_an_object_that_is_not_there() {
        let answer = |name: &str| -> kube::core::Status {
            serde_json::from_value(
                serde_json::json!({"code": 404, "reason": "NotFound", "message": "not found",
                "details": {"name": name, "kind": "macosmachines"}}),
            )
            .unwrap()
        };
        assert!(!is_unserved(&answer("b-6")));
        assert!(is_unserved(&answer("")));
        // what the API server answers where no group is: text, of which kube makes this
        let text = kube::core::Status::failure("404 page not found", "Failed to parse error data").with_code(404);
        let text = words(&kube::Error::Api(Box::new(text)));
        assert!(text.contains("does not serve this kind"), "{text}");
    }

    #[test]
    fn a_page_of_a_proxy_is_one_short_line() {
        let page = kube::core::Status::failure(&"<p>\n".repeat(5_000), "x").with_code(502);
        let text = words(&kube::Error::Api(Box::new(page)));
        assert!(text.chars().count() <= 601 && !text.contains('\n'), "{text}");
    }

    #[test]
    fn causes_are_told_once_and_without_the_librarys_own_words() {
        let cause = std::io::Error::other("Connection refused (os error 111)");
        let error = anyhow::Error::new(cause)
            .context("tcp connect error")
            .context("client error (Connect)");
        let error: Box<dyn std::error::Error + Send + Sync> = error.into();
        assert_eq!(chain(&*error), "tcp connect error: Connection refused (os error 111)");
    }

    #[test]
    fn what_others_wrote_does_nothing_to_a_terminal() {
        assert_eq!(
            plain("a\u{1b}[2J\r\nRun: b\u{202e}c\u{7}"),
            "a\u{fffd}[2J  Run: b\u{fffd}c\u{fffd}"
        );
        assert_eq!(plain("ü 200 GiB"), "ü 200 GiB");
    }
}
