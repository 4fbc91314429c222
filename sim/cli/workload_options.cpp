#include "sim/cli/command.hpp"

namespace oomcast::cli {

po::options_description workload_options() {
  po::options_description options("Workload");
  const auto text = [](const char* name) { return po::value<std::string>()->value_name(name); };
  const auto count = [] { return po::value<std::int64_t>()->value_name("N"); };
  options.add_options()("trace",
                        po::value<std::vector<std::string>>()->composing()->value_name("FILE"),
                        "trace file, plain, .gz or .zst, or - (repeatable, merged by time)")(
      "trace-format", text("FORMAT")->default_value("", ""),
      "format of the traces; default: detected (see: oomcast list formats)")(
      "synthetic", po::value<std::vector<std::string>>()->composing()->value_name("SPEC"),
      "generated requests, e.g. "
      "poisson:rate=5,requests=1000,input=lognormal(1024,0.8),output=uniform(64,512) (repeatable: "
      "classes of requests, merged by time)")(
      "output", text("LENGTHS")->default_value("", ""),
      "draw the output lengths of traces, e.g. lognormal(200,0.8)")(
      "warm-up", text("FILE")->default_value("", ""),
      "a trace that runs before, to fill the prefix cache; it is not counted")(
      "requests", count(), "stop after this many requests")(
      "rate-scale", text("X")->default_value("", ""), "arrivals this many times as fast")(
      "prompt-scale", text("X")->default_value("", ""),
      "prompts this many times as long, as another tokenizer counts them")(
      "timeout", text("SECONDS")->default_value("", ""),
      "clients give a request up that is not answered by then")(
      "closed-loop", count(), "this many clients, each waiting for its answer");
  return options;
}

workloads::WorkloadOptions workload_choices(const po::variables_map& values) {
  workloads::WorkloadOptions input;
  if (values.count("trace") != 0) {
    input.traces = values["trace"].as<std::vector<std::string>>();
  }
  input.trace_format = values["trace-format"].as<std::string>();
  if (values.count("synthetic") != 0) {
    input.synthetic = values["synthetic"].as<std::vector<std::string>>();
  }
  input.warm_up = values["warm-up"].as<std::string>();
  input.output = values["output"].as<std::string>();
  if (values.count("requests") != 0) {
    input.requests = values["requests"].as<std::int64_t>();
  }
  input.rate_scale = values["rate-scale"].as<std::string>();
  input.prompt_scale = values["prompt-scale"].as<std::string>();
  input.timeout = values["timeout"].as<std::string>();
  if (values.count("closed-loop") != 0) {
    input.closed_loop = values["closed-loop"].as<std::int64_t>();
  }
  input.seed = values["seed"].as<std::uint64_t>();
  return input;
}

void refuse_workload_changes(const po::variables_map& values, Problems& problems) {
  for (const char* name : {"trace-format", "output", "warm-up", "requests", "rate-scale",
                           "prompt-scale", "timeout", "closed-loop"}) {
    if (values.count(name) != 0 && !values[name].defaulted()) {
      problems.add(
          {"command line", fmt::format("--{}", name), "", "--trace or --synthetic with it", ""});
    }
  }
}

}  // namespace oomcast::cli
