#[derive(clap::Parser)]
struct Cli {
    #[command(flatten)]
    args: mbal_bench::Args,
}

fn main() -> std::process::ExitCode {
    mbal_bench::run(<Cli as clap::Parser>::parse().args)
}
