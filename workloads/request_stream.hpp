// What the simulated server is asked to do, pulled request by request: from trace files, from
// generators, from either through modifiers. Memory does not grow with the length of a trace.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/content.hpp"
#include "sim/core/units.hpp"

namespace oomcast::workloads {

struct TraceRequest {
  std::int64_t index = 0;  // dense, in order of delivery
  std::string id;          // the trace's own name for it; may be empty
  SimTime arrival;         // counted from the first row's arrival
  Tokens input;            // whole prompt, > 0
  Tokens output;           // tokens to generate, > 0

  // What the prompt is made of, in order; lengths sum to `input`. Equal (segment, offset) pairs
  // mean equal tokens, also across requests. Empty: shares nothing with any other request.
  std::vector<ContentSegment> content;
  // Generated tokens are the next tokens of the last segment (a conversation whose later prompts
  // hold the earlier answers).
  bool output_continues_content = false;

  std::uint64_t session = 0;  // equal for the requests of one conversation; 0: none
  std::string parent_id;      // `id` of the request this one follows; may be empty
  std::int32_t turn = 0;      // place in its conversation, from 1; 0: unknown
  Nanos think;                // idle time of the client before this request, where the trace has it
  // The client gives up so long after it asked; absent: it waits for its answer.
  std::optional<Nanos> patience;
  std::int64_t priority = 0;  // smaller is earlier, as in vLLM
  bool warm_up = false;       // only fills caches: no row, not in the totals
  std::string adapter;        // LoRA adapter or model asked for; may be empty

  friend bool operator==(const TraceRequest&, const TraceRequest&) = default;
};

// Every row read is kept or dropped; nothing is repaired in silence.
struct ReadSummary {
  struct Reason {
    std::int64_t count = 0;
    std::string first;  // where it was first seen: "file.csv line 17"
  };
  std::string format;  // of the file, or of the generator
  std::int64_t read = 0;
  std::int64_t kept = 0;
  std::map<std::string, Reason> dropped;  // by reason; counts sum to read - kept
  std::map<std::string, Reason>
      changed;                     // kept, but not as the trace has it ("output 0 read as 1")
  std::vector<std::string> notes;  // choices that were made ("block size 512")
  // Arrival of the first row on the trace's own clock, where it has one: "2023-11-16 18:15:46.68".
  std::string origin;
};

// Requests by arrival. Closed-loop streams (clients that wait for an answer) learn of completions
// through on_finished() and may then know an earlier request than before.
//
//   while (!stream.at_end()) {
//     auto due = stream.next_arrival();   // nullopt: waiting for a completion
//     ... advance to *due or to the next completion, whichever is first ...
//     stream.take(request);  or  stream.on_finished(index, now);
//   }
class RequestStream {
 public:
  RequestStream() = default;
  virtual ~RequestStream() = default;
  RequestStream(const RequestStream&) = delete;
  RequestStream& operator=(const RequestStream&) = delete;

  // Arrival of the earliest request known now; nullopt when none is known until some request
  // finishes, or when the stream is over. Never before the arrival of a request already taken.
  // Throws ConfigError when the trace turns out to be bad.
  virtual std::optional<SimTime> next_arrival() = 0;

  // Moves that request into `out`, whose buffers are reused. REQUIRES: next_arrival() has a value.
  virtual void take(TraceRequest& out) = 0;

  // No request will come any more, whatever finishes.
  virtual bool at_end() = 0;

  // The request with this index was answered, rejected or aborted at `now`. Each index once.
  virtual void on_finished(std::int64_t /*index*/, SimTime /*now*/) {}

  // Does a later arrival depend on completions?
  [[nodiscard]] virtual bool is_closed_loop() const { return false; }

  // Complete once at_end().
  [[nodiscard]] virtual ReadSummary summary() const = 0;
};

// The next request, or nullopt at the end. For open-loop streams.
std::optional<TraceRequest> next_request(RequestStream& stream);

struct TraceOptions {
  // Empty: detected by column or key names. "NAME", "NAME:block=N" (tokens per block id),
  // "servegen:start=SECONDS,duration=SECONDS".
  std::string format;
  // Rows with output 0 (failed or cut requests): dropped, or sent as prefill with one token.
  enum class ZeroOutput { kDrop, kOneToken };
  ZeroOutput zero_output = ZeroOutput::kDrop;
  // Rows of a plain trace may lack their output: drawn afterwards.
  bool draws_output = false;
  // Sessions of an agentic trace that run at once; their rows have no absolute times.
  std::int64_t concurrent_sessions = 8;
  // For traces that are distributions (ServeGen).
  std::uint64_t seed = 0;
};

// Opens a trace (plain, gzip or zstd by its first bytes; "-": standard input). Throws ConfigError
// for what cannot be read; a bad row throws from here or from next_arrival().
std::unique_ptr<RequestStream> open_trace(const std::string& path,
                                          const TraceOptions& options = {});

// The same for bytes already in memory; `name` stands for the file in messages.
std::unique_ptr<RequestStream> read_trace(const std::string& bytes, const std::string& name,
                                          const TraceOptions& options = {});

// Requests made up from a description, see workloads/README.md:
//   poisson:rate=5,requests=1000,input=lognormal(1024,0.8),output=uniform(64,512)
// Throws ConfigError showing the valid choices.
std::unique_ptr<RequestStream> make_synthetic(const std::string& spec, std::uint64_t seed);

// The first `count` requests.
std::unique_ptr<RequestStream> limit_requests(std::unique_ptr<RequestStream> stream,
                                              std::int64_t count);
// Arrivals and think times divided by `factor` (> 0), exactly and rounded down to the nanosecond.
// Throws ConfigError for a factor that is no positive decimal number.
std::unique_ptr<RequestStream> scale_rate(std::unique_ptr<RequestStream> stream,
                                          std::string_view factor);
// Prompts `factor` (> 0) times as long, as another tokenizer counts them: each prefix rounded up,
// so that equal ones stay equal. Throws ConfigError for a factor that is no positive decimal
// number.
std::unique_ptr<RequestStream> scale_prompts(std::unique_ptr<RequestStream> stream,
                                             std::string_view factor);
// Clients that wait no longer than `seconds` (> 0) for a whole answer. Throws ConfigError as above.
std::unique_ptr<RequestStream> limit_patience(std::unique_ptr<RequestStream> stream,
                                              std::string_view seconds);
// Output lengths drawn from a distribution (distribution.hpp), whatever they were. Throws
// ConfigError for none.
std::unique_ptr<RequestStream> draw_outputs(std::unique_ptr<RequestStream> stream,
                                            const std::string& distribution, std::uint64_t seed);
// The requests of `warm_up` first, marked so; the stream begins once all of them are answered.
std::unique_ptr<RequestStream> warmed_up(std::unique_ptr<RequestStream> warm_up,
                                         std::unique_ptr<RequestStream> stream);
// Several streams as one, by arrival; ties in the order given. Indices are given anew.
std::unique_ptr<RequestStream> merge_streams(std::vector<std::unique_ptr<RequestStream>> streams);
// `clients` clients that take requests in order; each sends its next one `think` after its last was
// answered. Arrival times of the stream are ignored; its think times are added.
std::unique_ptr<RequestStream> close_loop(std::unique_ptr<RequestStream> stream,
                                          std::int64_t clients, Nanos think);

// What the options of a replay ask for, put together: traces or a synthetic workload, scaled,
// merged, limited, in a closed loop.
struct WorkloadOptions {
  std::vector<std::string> traces = {};       // --trace, repeatable
  std::string trace_format = {};              // --trace-format
  std::vector<std::string> synthetic = {};    // --synthetic, repeatable
  std::string warm_up = {};                   // --warm-up; empty: none
  std::string output = {};                    // --output; empty: as the traces say
  std::string prompt_scale = {};              // --prompt-scale; empty: 1
  std::string rate_scale = {};                // --rate-scale; empty: 1
  std::string timeout = {};                   // --timeout, seconds; empty: none
  std::optional<std::int64_t> requests = {};  // --requests
  // --closed-loop: that many clients; for agentic traces, that many sessions at once.
  std::optional<std::int64_t> closed_loop = {};
  TraceOptions::ZeroOutput zero_output = TraceOptions::ZeroOutput::kDrop;
  std::uint64_t seed = 0;
};
// Throws ConfigError; at least one trace or synthetic workload must be given.
std::unique_ptr<RequestStream> make_workload(const WorkloadOptions& options);
// The last part of it: another rate, longer prompts, a limit, a closed loop, as the options ask.
std::unique_ptr<RequestStream> with_options(std::unique_ptr<RequestStream> stream,
                                            const WorkloadOptions& options);

struct TraceFormat {
  std::string_view name;
  std::string_view about;      // one line: whose traces, time unit
  std::string_view signature;  // the columns or keys it is detected by
};
// In order of detection. For `list formats` and error messages.
const std::vector<TraceFormat>& trace_formats();

}  // namespace oomcast::workloads
