//! Whether the operator may clone from where images come from: asked of the API server, kept, and asked again, since a
//! grant makes no change that is watched.
//!
//! Invariants: an answer that failed is no refusal, and nothing that was not asked for is granted; one question that is
//! answered slowly, or never, holds no other answer back.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

pub use dockerios_core::decide::clone_right::CloneSource;
use dockerios_core::{
    Seen,
    decide::clone_right::{ASK_AGAIN, ASK_ANEW},
};
use futures::{StreamExt, stream::FuturesUnordered};
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

/// An authorizer that takes longer has not answered. The API server waits for one of its webhooks half a minute
/// (kube-apiserver, AuthorizationConfiguration); the question is asked again before.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks for every source that is wanted, round after round, and when others are wanted as soon as a round is over.
pub async fn watch(client: Client, wanted: watch::Receiver<BTreeSet<CloneSource>>, tell: mpsc::Sender<Answer>) {
    rounds(&Api::all(client), wanted, &tell, PATIENCE).await;
}

async fn rounds(
    reviews: &Api<SelfSubjectAccessReview>,
    mut wanted: watch::Receiver<BTreeSet<CloneSource>>,
    tell: &mpsc::Sender<Answer>,
    patience: Duration,
) {
    loop {
        let sources = wanted.borrow_and_update().clone();
        let asked = sources.into_iter().map(|source| ask(reviews, source, patience));
        let mut asked: FuturesUnordered<_> = asked.collect();
        let mut all = true;
        while let Some(answer) = asked.next().await {
            all &= answer.right == Seen::Present(true);
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

async fn ask(reviews: &Api<SelfSubjectAccessReview>, source: CloneSource, patience: Duration) -> Answer {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes(&source)),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let params = PostParams::default();
    let right = match tokio::time::timeout(patience, reviews.create(&params, &review)).await {
        Ok(Ok(answered)) => judged(answered),
        Ok(Err(error)) => Seen::Unknown(format!("SelfSubjectAccessReview: {}", dockerios_pki::words(&error))),
        Err(_) => Seen::Unknown(format!("SelfSubjectAccessReview: no answer within {patience:?}")),
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
    use crate::peer::{Answer as Reply, answering};

    /// Asks about two namespaces, of which an authorizer answers for `quick` alone.
    async fn two(patience: Duration) -> mpsc::Receiver<Answer> {
        let client = answering(|request| {
            if request.contains("\"quick\"") {
                Reply::Json(json!({"spec": {}, "status": {"allowed": true}}))
            } else {
                Reply::Never
            }
        })
        .await;
        let (tell, told) = mpsc::channel(4);
        let both = BTreeSet::from([CloneSource::all_of("never"), CloneSource::all_of("quick")]);
        tokio::spawn(async move {
            let (_keep, wanted) = watch::channel(both);
            rounds(&Api::all(client), wanted, &tell, patience).await;
        });
        told
    }

    async fn next(told: &mut mpsc::Receiver<Answer>) -> Answer {
        let next = tokio::time::timeout(Duration::from_secs(30), told.recv()).await;
        next.expect("it is told").expect("it goes on asking")
    }

    #[tokio::test]
    async fn an_answer_is_told_while_another_is_waited_for() {
        let told = next(&mut two(Duration::from_secs(3600)).await).await;
        assert_eq!(told.source, CloneSource::all_of("quick"));
        assert_eq!(told.right, Seen::Present(true));
    }

    #[tokio::test]
    async fn an_authorizer_that_never_answers_is_said_to_have_given_no_answer() {
        let mut answers = two(Duration::from_millis(300)).await;
        let (one, other) = (next(&mut answers).await, next(&mut answers).await);
        let never = [one, other].into_iter().find(|told| told.source.namespace == "never");
        let why = never.as_ref().and_then(|told| told.right.unreadable());
        assert!(
            why.is_some_and(|why| why.contains("no answer within 300ms")),
            "{never:?}"
        );
    }

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
