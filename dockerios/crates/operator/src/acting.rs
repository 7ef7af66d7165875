//! Plans that are being carried out, each in a task of its own.
//!
//! Invariant: every plan that was begun comes to an end here, also one whose task panicked. Its object is decided about
//! again only then, so one that was forgotten would stand still for as long as the process lives.

use std::collections::HashMap;

use dockerios_core::Id;
use tokio::task::{self, JoinSet};

use crate::act::Outcome;

/// All that are under way.
#[derive(Default)]
pub struct Acting {
    tasks: JoinSet<Outcome>,
    of: HashMap<task::Id, Id>,
}

impl Acting {
    /// Has a plan about that object carried out.
    pub fn begin(&mut self, id: Id, work: impl Future<Output = Outcome> + Send + 'static) {
        let task = self.tasks.spawn(work).id();
        self.of.insert(task, id);
    }

    /// How many are under way.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The next that ends, with how it went; none while none is under way. May be given up and called again.
    pub async fn next(&mut self) -> Option<(Id, Outcome)> {
        loop {
            let (task, outcome) = match self.tasks.join_next_with_id().await? {
                Ok(ended) => ended,
                Err(error) => {
                    // a defect of ours: nobody knows how far it came, so facts are looked at again
                    tracing::error!(%error, "a plan's execution ended badly");
                    let later = Some("its execution ended badly".to_owned());
                    let outcome = Outcome {
                        later,
                        ..Outcome::default()
                    };
                    (error.id(), outcome)
                }
            };
            if let Some(id) = self.of.remove(&task) {
                return Some((id, outcome));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use dockerios_core::Kind;

    use super::*;

    #[tokio::test]
    async fn a_plan_whose_execution_panics_ends_as_one_that_is_tried_again() {
        let mut acting = Acting::default();
        let (well, ill) = (
            Id::new(Kind::MacOSMachine, "n", "well"),
            Id::new(Kind::MacOSMachine, "n", "ill"),
        );
        acting.begin(well.clone(), async { Outcome::default() });
        acting.begin(ill.clone(), async { panic!("a defect") });
        let mut ended = HashMap::new();
        while let Some((id, outcome)) = acting.next().await {
            ended.insert(id, outcome.word());
        }
        assert_eq!(ended, HashMap::from([(well, "done"), (ill, "later")]));
        assert!(acting.is_empty());
    }
}
