// The workload that a replay's options describe.
#include <algorithm>

#include "sim/core/digest.hpp"
#include "sim/core/error.hpp"
#include "workloads/request_stream.hpp"

namespace oomcast::workloads {

std::unique_ptr<RequestStream> make_workload(const WorkloadOptions& options) {
  if (options.traces.empty() && options.synthetic.empty()) {
    throw ConfigError(
        Problem{"command line", "", "neither", "--trace FILE or --synthetic SPEC", ""});
  }
  const auto pipes = std::count(options.traces.begin(), options.traces.end(), "-") +
                     (options.warm_up == "-" ? 1 : 0);
  if (pipes > 1) {
    throw ConfigError(
        Problem{"command line", "--trace", "- twice", "standard input at most once", ""});
  }
  std::vector<std::unique_ptr<RequestStream>> streams;
  for (const std::string& trace : options.traces) {
    TraceOptions trace_options;
    trace_options.format = options.trace_format;
    trace_options.zero_output = options.zero_output;
    trace_options.seed = options.seed;
    trace_options.draws_output = !options.output.empty();
    if (options.closed_loop) {
      trace_options.concurrent_sessions = *options.closed_loop;
    }
    streams.push_back(open_trace(trace, trace_options));
  }
  if (!options.output.empty()) {
    for (std::unique_ptr<RequestStream>& trace : streams) {
      trace = draw_outputs(std::move(trace), options.output, options.seed);
    }
  }
  // Classes of requests draw apart from each other.
  for (std::size_t i = 0; i < options.synthetic.size(); ++i) {
    streams.push_back(
        make_synthetic(options.synthetic[i], i == 0 ? options.seed : mix64(options.seed + i)));
  }
  return with_options(merge_streams(std::move(streams)), options);
}

std::unique_ptr<RequestStream> with_options(std::unique_ptr<RequestStream> stream,
                                            const WorkloadOptions& options) {
  if (!options.rate_scale.empty()) {
    stream = scale_rate(std::move(stream), options.rate_scale);
  }
  if (!options.prompt_scale.empty()) {
    stream = scale_prompts(std::move(stream), options.prompt_scale);
  }
  if (!options.timeout.empty()) {
    stream = limit_patience(std::move(stream), options.timeout);
  }
  if (options.requests) {
    stream = limit_requests(std::move(stream), *options.requests);
  }
  if (options.closed_loop && stream->is_closed_loop() && options.traces.empty()) {
    throw ConfigError(Problem{
        "command line", "--closed-loop", fmt::format("{}", *options.closed_loop),
        "generated requests with arrival times", "those of `closed` say clients=N themselves"});
  }
  if (options.closed_loop && !stream->is_closed_loop()) {
    stream = close_loop(std::move(stream), *options.closed_loop, Nanos{});
  }
  if (!options.warm_up.empty()) {
    stream =
        warmed_up(open_trace(options.warm_up, {.format = options.trace_format}), std::move(stream));
  }
  return stream;
}

}  // namespace oomcast::workloads
