//! How an event changes the state, and the work that it causes.

use larder_kube::kinds::{Kind, Part};

use super::State;
use crate::watch::News;
use crate::work_queue::Work;

impl State {
    /// Applies an event. Returns the resulting work.
    pub fn apply(&mut self, news: News) -> Vec<Work> {
        let mut work = Vec::new();
        match news {
            News::Changed(kind, object) => {
                self.saw(kind, object.meta().version);
                object.put(self, &mut work);
            }
            News::Written(kind, object) => {
                if !self.is_old_news(kind, object.meta()) {
                    object.put(self, &mut work);
                }
            }
            News::Gone(kind, key, version) => {
                self.saw(kind, version);
                self.remove(kind, &key, &mut work);
            }
            News::All(kind, objects, unreadable) => {
                let mut gone = self.keys(kind);
                for object in objects {
                    self.saw(kind, object.meta().version);
                    gone.remove(&object.key());
                    object.put(self, &mut work);
                }
                if kind == Kind::Dataset {
                    self.unreadable.clear();
                }
                for object in unreadable {
                    // The last readable version of the object is kept.
                    gone.remove(&object.key);
                    self.put_unreadable(object);
                }
                for key in gone {
                    self.remove(kind, &key, &mut work);
                }
                let is_unknown = |state: &Self| kind.part().is_some_and(|part| state.presence(part).is_unknown());
                let was_complete = self.is_complete() && !is_unknown(self);
                match kind {
                    Kind::Kueue(kind, version) => self.kueue.all_listed(kind, version),
                    Kind::PodGroup => self.jobs.gangs.listed(kind, 1),
                    Kind::Cluster => self.clusters.presence.listed(kind, 1),
                    kind if kind.part().is_some() => self.jobs.presence.listed(kind, Kind::OF_JOBS.len()),
                    kind => _ = self.listed.insert(kind),
                }
                self.part_changed(kind.part(), &mut work);
                // Changed objects of such a part have already scheduled their work.
                let is_known = was_complete || is_unknown(self);
                if self.is_complete() && !(is_known && kind.part().is_some()) {
                    self.everything(&mut work);
                }
            }
            News::Absent(part) => {
                let was_complete = self.is_complete() && !self.presence(part).is_unknown();
                match part {
                    Part::Kueue => self.forget_kueue(&mut work),
                    Part::Jobs => self.forget_jobs(&mut work),
                    Part::Gangs => self.forget_gangs(),
                    Part::Clusters => self.forget_clusters(&mut work),
                }
                self.part_changed(Some(part), &mut work);
                if self.is_complete() && !was_complete {
                    self.everything(&mut work);
                }
            }
            News::Silent(part) => {
                let was_complete = self.is_complete();
                match part {
                    Part::Kueue => self.kueue.presence.is_silent(),
                    Part::Jobs => self.jobs.presence.is_silent(),
                    Part::Gangs => self.jobs.gangs.is_silent(),
                    Part::Clusters => self.clusters.presence.is_silent(),
                }
                if self.is_complete() && !was_complete {
                    self.everything(&mut work);
                }
            }
            News::Unreadable(object) => self.put_unreadable(object),
            News::Link(cluster, number, report) => self.link_reports(&cluster, number, report, &mut work),
        }
        work
    }
}
