//! Random clusters from a seed, for tests and experiments.

use mbal_model::{CacheletLoad, Owner, Prefix, ServerId, Service, Snapshot, WorkerId, WorkerLoad};
use mbal_random::Random;

pub struct Clusters(Random);

#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    pub cachelets: usize,
    pub servers: usize,
    pub workers_per_server: usize,
    /// Mean load of a worker.
    pub load: f64,
    /// A worker's fixed load is drawn below this.
    pub fixed_max: f64,
    /// Cachelet r is 1/(r+1)^skew as heavy on average.
    pub skew: f64,
    /// A worker's memory in average shares; cachelets have 0.5 to 1.5 units.
    pub memory: f64,
}

impl Recipe {
    pub const SMALL: Recipe = Recipe {
        cachelets: 16,
        servers: 1,
        workers_per_server: 8,
        load: 0.5,
        fixed_max: 0.0,
        skew: 0.0,
        memory: 1e6,
    };
}

impl Clusters {
    pub fn new(seed: u64) -> Clusters {
        Clusters(Random::new(seed))
    }

    /// In [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.0.word() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.unit() * bound as f64) as usize
    }

    pub fn draw(&mut self, recipe: &Recipe) -> Snapshot {
        let workers = recipe.servers * recipe.workers_per_server;
        let share = recipe.cachelets as f64 / workers as f64;
        let mut snapshot = Snapshot {
            workers: (0..workers)
                .map(|index| WorkerLoad {
                    at: Owner {
                        server: ServerId((index / recipe.workers_per_server) as u16),
                        worker: WorkerId((index % recipe.workers_per_server) as u16),
                    },
                    service: Service::default(),
                    fixed: recipe.fixed_max * self.unit(),
                    bytes_max: (1000.0 * share * recipe.memory) as u64,
                    cachelets: Vec::new(),
                })
                .collect(),
        };
        let mut loads: Vec<f64> = (0..recipe.cachelets)
            .map(|rank| self.unit() / ((rank + 1) as f64).powf(recipe.skew))
            .collect();
        let fixed: f64 = snapshot.workers.iter().map(|worker| worker.fixed).sum();
        let wanted = (recipe.load * workers as f64 - fixed).max(0.05 * workers as f64);
        let scale = wanted / loads.iter().sum::<f64>();
        loads.iter_mut().for_each(|load| *load *= scale);
        for (id, load) in loads.into_iter().enumerate() {
            let bytes = 500 + self.below(1000) as u64;
            let pinned = false;
            let worker = self.below(workers);
            let cachelet = Prefix::nth(id, 15);
            snapshot.workers[worker].cachelets.push(CacheletLoad { cachelet, load, bytes, pinned });
        }
        snapshot
    }
}
