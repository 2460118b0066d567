mod gpus;
mod ports;
mod property;
mod world;
