//! Which queues a discovery pop addresses: queues by namespace and by task.
//!
//! Invariant: follows `Touched::Queue`; holds exactly the queues that exist once those were followed.
//!
//! Must not: know who asks.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use super::state::Queue;
use crate::types::QueueId;

/// Queues by namespace and by task.
#[derive(Debug, Default)]
pub(super) struct Matching {
    namespaces: HashMap<String, BTreeSet<QueueId>>,
    tasks: HashMap<String, BTreeSet<QueueId>>,
    /// Namespace and task under which a queue is filed.
    filed: HashMap<QueueId, (String, String)>,
}

impl Matching {
    /// Files a queue anew, or forgets it.
    pub(super) fn note(&mut self, id: QueueId, queue: Option<&Queue>) {
        if let (Some((namespace, task)), Some(queue)) = (self.filed.get(&id), queue)
            && *namespace == queue.namespace
            && *task == queue.task
        {
            return;
        }
        if let Some((namespace, task)) = self.filed.remove(&id) {
            remove(&mut self.namespaces, &namespace, id);
            remove(&mut self.tasks, &task, id);
        }
        if let Some(queue) = queue {
            self.namespaces.entry_ref(queue.namespace.as_str()).or_default().insert(id);
            self.tasks.entry_ref(queue.task.as_str()).or_default().insert(id);
            self.filed.insert(id, (queue.namespace.clone(), queue.task.clone()));
        }
    }

    /// The queues that match every given value, oldest first. Costs a look at each candidate.
    pub(super) fn queues(&self, namespace: Option<&str>, task: Option<&str>) -> Vec<QueueId> {
        let by_namespace = namespace.map(|name| self.namespaces.get(name));
        let by_task = task.map(|name| self.tasks.get(name));
        match (by_namespace, by_task) {
            (Some(Some(queues)), None) | (None, Some(Some(queues))) => queues.iter().copied().collect(),
            (Some(Some(some)), Some(Some(others))) => some.intersection(others).copied().collect(),
            _ => Vec::new(),
        }
    }

    /// Queues filed.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.filed.len()
    }
}

fn remove(map: &mut HashMap<String, BTreeSet<QueueId>>, name: &str, id: QueueId) {
    if let Some(queues) = map.get_mut(name) {
        queues.remove(&id);
        if queues.is_empty() {
            map.remove(name);
        }
    }
}
