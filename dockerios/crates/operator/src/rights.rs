//! Whether the operator may clone from where images come from: asked of the API server, kept, and asked again, since a
//! grant makes no change that is watched.
//!
//! Invariant: an answer that failed is no refusal, and nothing that was not asked for is granted.

use std::collections::{BTreeSet, HashMap};

pub use dockerios_core::decide::clone_right::CloneSource;
use dockerios_core::{
    Seen,
    decide::clone_right::{ASK_AGAIN, ASK_ANEW},
};
use futures::future::join_all;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::{Api, Client, api::PostParams};
use tokio::sync::{mpsc, watch};

/// What the API server said of one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// From what is to be cloned.
    pub source: CloneSource,
    /// Whether that is allowed, or why it is not known.
    pub right: Seen<bool>,
}

/// The last answer about every source.
#[derive(Debug, Default)]
pub struct Rights(HashMap<CloneSource, Seen<bool>>);

impl Rights {
    /// Whether it may be cloned from; Unknown before its first answer.
    pub fn of(&self, source: &CloneSource) -> Seen<bool> {
        let known = self.0.get(source).cloned();
        known.unwrap_or_else(|| Seen::Unknown("the API server has not been asked yet".to_owned()))
    }

    /// Keeps an answer; whether it is news. A question that failed takes no answer back: one that timed out would send every
    /// machine that waits from its own reason to Unreadable and back, and CDI's refusal tells of a right that was lost.
    pub fn take(&mut self, Answer { source, right }: Answer) -> bool {
        let known = self.0.get(&source).is_some_and(|known| known.unreadable().is_none());
        if known && right.unreadable().is_some() {
            return false;
        }
        self.0.insert(source, right.clone()) != Some(right)
    }
}

/// Asks for every source that is wanted, round after round, and at once when others are wanted.
pub async fn watch(client: Client, mut wanted: watch::Receiver<BTreeSet<CloneSource>>, tell: mpsc::Sender<Answer>) {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client);
    loop {
        let sources = wanted.borrow_and_update().clone();
        let answers = join_all(sources.into_iter().map(|source| ask(&reviews, source))).await;
        let all = answers.iter().all(|answer| answer.right == Seen::Present(true));
        for answer in answers {
            if tell.send(answer).await.is_err() {
                return;
            }
        }
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(if all { ASK_ANEW } else { ASK_AGAIN }) => {}
        }
    }
}

async fn ask(reviews: &Api<SelfSubjectAccessReview>, source: CloneSource) -> Answer {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes(&source)),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let right = match reviews.create(&PostParams::default(), &review).await {
        Ok(answered) => judged(answered),
        Err(error) => Seen::Unknown(format!("SelfSubjectAccessReview: {}", dockerios_pki::words(&error))),
    };
    Answer { source, right }
}

/// What CDI itself asks about whoever makes a DataVolume (CDI, `CanUserClonePVC`). That it also lets those in who may
/// make any pod there is left out: nobody should grant that for a clone.
fn attributes(source: &CloneSource) -> ResourceAttributes {
    ResourceAttributes {
        namespace: Some(source.namespace.clone()),
        verb: Some("create".to_owned()),
        group: Some("cdi.kubevirt.io".to_owned()),
        resource: Some("datavolumes".to_owned()),
        subresource: Some("source".to_owned()),
        name: source.name.clone(),
        ..ResourceAttributes::default()
    }
}

fn judged(answered: SelfSubjectAccessReview) -> Seen<bool> {
    let Some(status) = answered.status else {
        return Seen::Unknown("SelfSubjectAccessReview: the answer has no status".to_owned());
    };
    match (
        status.allowed,
        status.evaluation_error.filter(|error| !error.is_empty()),
    ) {
        (true, _) => Seen::Present(true),
        // an authorizer that failed has not said no
        (false, Some(error)) if status.denied != Some(true) => {
            Seen::Unknown(format!("SelfSubjectAccessReview: {error}"))
        }
        (false, _) => Seen::Present(false),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(status: serde_json::Value) -> Seen<bool> {
        judged(serde_json::from_value(json!({"spec": {}, "status": status})).expect("a review"))
    }

    #[test]
    fn only_an_answer_counts_and_an_authorizer_that_failed_gave_none() {
        assert_eq!(answer(json!({"allowed": true})), Seen::Present(true));
        assert_eq!(
            answer(json!({"allowed": true, "evaluationError": "one of two failed"})),
            Seen::Present(true)
        );
        assert_eq!(answer(json!({"allowed": false})), Seen::Present(false));
        assert_eq!(
            answer(json!({"allowed": false, "denied": true, "evaluationError": "x"})),
            Seen::Present(false)
        );
        let failed = answer(json!({"allowed": false, "evaluationError": "webhook: timeout"}));
        assert!(
            failed.unreadable().is_some_and(|why| why.contains("timeout")),
            "{failed:?}"
        );
        assert!(answer(json!(null)).unreadable().is_some());
    }

    #[test]
    fn what_was_never_asked_is_not_known_and_only_another_answer_is_news() {
        let mut rights = Rights::default();
        let (one, all) = (CloneSource::one("golden", "a"), CloneSource::all_of("golden"));
        assert!(rights.of(&one).unreadable().is_some());
        let granted = Answer {
            source: all.clone(),
            right: Seen::Present(true),
        };
        assert!(rights.take(granted.clone()));
        assert!(!rights.take(granted));
        assert_eq!(rights.of(&all), Seen::Present(true));
        let failed = |words: &str| Answer {
            source: all.clone(),
            right: Seen::Unknown(words.to_owned()),
        };
        assert!(
            !rights.take(failed("timed out")),
            "who waits for other things is not told of it"
        );
        assert_eq!(
            rights.of(&all),
            Seen::Present(true),
            "a question that failed takes no answer back"
        );
        let denied = Answer {
            source: all.clone(),
            right: Seen::Present(false),
        };
        assert!(rights.take(denied), "another answer does");
        assert!(
            rights.of(&one).unreadable().is_some(),
            "a right to all was asked for, not to this one"
        );
    }
}
