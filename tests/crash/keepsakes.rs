//! Small situations that are made before a crash and must be the same after it.

use serde_json::{Value, json};

use crate::common::api::{Api, Popped, Pushed, Verdict};

const GROUP: &str = "keeper";

/// What was made and what is known about it.
pub(crate) struct Keepsakes {
    round: u64,
    /// A held lease over three messages, of which the first is acknowledged.
    held: Popped,
    /// A message in its second delivery, with its retry budget used up.
    charged: Popped,
    /// A message that was given back once, so its next delivery is its second.
    given_back: Popped,
    /// A batch that was completed.
    settled: Popped,
    /// A push whose answer is known.
    pushed: Vec<Pushed>,
}

fn queue(kind: &str, round: u64) -> String {
    format!("keepsake-{kind}-{round}")
}

async fn push(api: &Api, queue: &str, ids: &[&str]) -> Vec<Pushed> {
    let items: Vec<Value> =
        ids.iter().map(|id| json!({"queue": queue, "transactionId": id, "payload": {"id": id}})).collect();
    api.push_items(json!(items)).await
}

async fn pop(api: &Api, queue: &str) -> Popped {
    let query =
        [("consumerGroup", GROUP), ("subscriptionMode", "all"), ("batch", "10"), ("leaseSeconds", "120")];
    api.pop(&format!("/queue/{queue}"), &query).await
}

async fn ack(api: &Api, popped: &Popped, message: usize, status: &str) -> Verdict {
    let message = &popped.messages[message];
    let body = json!({"transactionId": message.transaction_id, "partitionId": message.partition_id,
                      "leaseId": message.lease_id, "consumerGroup": GROUP, "status": status, "error": "kept"});
    api.ack("/api/v1/ack", &body).await.remove(0)
}

impl Keepsakes {
    pub(crate) async fn make(api: &Api, round: u64) -> Keepsakes {
        let held = queue("held", round);
        let pushed = push(api, &held, &["m1", "m2", "m3"]).await;
        let held = pop(api, &held).await;
        assert!(ack(api, &held, 0, "completed").await.success);

        let charged = queue("charged", round);
        api.configure(&charged, json!({"retryLimit": 1})).await;
        push(api, &charged, &["m1"]).await;
        assert!(!ack(api, &pop(api, &charged).await, 0, "failed").await.dlq);
        let charged = pop(api, &charged).await;
        assert_eq!(charged.messages[0].delivery_attempt, 2);

        let given_back = queue("given-back", round);
        push(api, &given_back, &["m1"]).await;
        let given_back = pop(api, &given_back).await;
        assert!(ack(api, &given_back, 0, "retry").await.success);

        let settled = queue("settled", round);
        push(api, &settled, &["m1"]).await;
        let settled = pop(api, &settled).await;
        assert!(ack(api, &settled, 0, "completed").await.lease_released);

        Keepsakes { round, held, charged, given_back, settled, pushed }
    }

    pub(crate) async fn check(&self, api: &Api) {
        let held = queue("held", self.round);
        assert!(pop(api, &held).await.messages.is_empty(), "the lease is still held");
        let again = push(api, &held, &["m1", "m2", "m3"]).await;
        for (before, after) in self.pushed.iter().zip(&again) {
            assert_eq!(after.status, "duplicate");
            assert_eq!((&after.message_id, after.offset), (&before.message_id, before.offset));
        }
        let late = ack(api, &self.held, 0, "failed").await;
        assert!(late.refused_with("committed"), "{late:?}");
        assert!(api.extend(&self.held.lease_id, "").await["success"] == true, "and it can be extended");
        assert!(ack(api, &self.held, 1, "completed").await.success);
        assert!(ack(api, &self.held, 2, "retry").await.lease_released);
        let rest = pop(api, &held).await;
        assert_eq!(rest.ids(), ["m3"]);
        assert_ne!(rest.lease_id, self.held.lease_id);
        assert!(
            ack(api, &self.held, 2, "completed").await.refused_with("lease"),
            "no lease id is given twice"
        );

        let charged = queue("charged", self.round);
        assert!(pop(api, &charged).await.messages.is_empty());
        let verdict = ack(api, &self.charged, 0, "failed").await;
        assert!(verdict.success && verdict.dlq, "the charge is remembered: {verdict:?}");
        let filed = api.dead_letters(&charged, Some(GROUP)).await;
        assert_eq!((filed.len(), filed[0].retry_count, filed[0].error_message.as_str()), (1, 1, "kept"));

        let second = pop(api, &queue("given-back", self.round)).await;
        assert_eq!(second.messages[0].delivery_attempt, 2);
        assert_eq!(second.messages[0].id, self.given_back.messages[0].id);

        assert!(pop(api, &queue("settled", self.round)).await.messages.is_empty());
        let repeat = ack(api, &self.settled, 0, "completed").await;
        assert!(repeat.success, "the repeat of the completing ack is harmless: {repeat:?}");
    }
}
