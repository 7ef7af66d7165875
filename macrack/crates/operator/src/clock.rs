//! Where time comes from: the operator's clock, and the API server's.

use k8s_openapi::{
    api::authentication::v1::SelfSubjectReview,
    jiff::{SignedDuration, Timestamp},
};
use kube::{Api, Client, api::PostParams};
use macrack_core::{clock::Clocks, seen::Seen};

/// The two clocks. The shifts are zero in the product; tests that must live through 24 hours construct others.
#[derive(Clone)]
pub struct Clock {
    client: Client,
    operator_shift: SignedDuration,
    server_shift: SignedDuration,
}

impl Clock {
    /// The real clocks.
    pub fn new(client: Client) -> Self {
        Self::shifted(client, SignedDuration::ZERO, SignedDuration::ZERO)
    }

    /// Clocks that are off by so much.
    pub fn shifted(client: Client, operator_shift: SignedDuration, server_shift: SignedDuration) -> Self {
        Self { client, operator_shift, server_shift }
    }

    /// The operator's clock.
    pub fn now(&self) -> Timestamp {
        Timestamp::now().checked_add(self.operator_shift).unwrap_or_else(|_| Timestamp::now())
    }

    /// The operator's clock alone.
    pub fn operator(&self) -> Clocks {
        Clocks { operator: self.now(), server: Seen::Absent }
    }

    /// Both clocks. A review of oneself needs no rights and is answered with the API server's time.
    pub async fn both(&self) -> Clocks {
        let reviews: Api<SelfSubjectReview> = Api::all(self.client.clone());
        let server = match reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await {
            Ok(review) => match review.metadata.creation_timestamp {
                Some(time) => Seen::Present(time.0.checked_add(self.server_shift).unwrap_or(time.0)),
                None => Seen::Unknown("the API server answered a review without its time".into()),
            },
            Err(error) => Seen::Unknown(format!("the API server's clock cannot be read: {error}")),
        };
        Clocks { operator: self.now(), server }
    }
}
