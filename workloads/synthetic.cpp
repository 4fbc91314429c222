// Requests made up from a description (grammar: workloads/README.md).
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "sim/core/error.hpp"
#include "sim/core/random.hpp"
#include "sim/core/units_text.hpp"
#include "workloads/distribution.hpp"
#include "workloads/request_stream.hpp"
#include "workloads/row_reader.hpp"

namespace oomcast::workloads {
namespace {

constexpr const char* kSource = "--synthetic";
constexpr double kNanosPerSecond = 1e9;
// 292 years of nanoseconds, with room to spare.
constexpr double kLongestGapSeconds = 1e9;
constexpr double kMostPriority = 1e9;

enum class Process { kPoisson, kGamma, kConstant, kBatch, kClosed };

struct Description {
  Process process = Process::kPoisson;
  std::string process_name;
  double rate = 0;  // requests a second
  double cv = 1;    // coefficient of variation of the gaps
  std::int64_t requests = std::numeric_limits<std::int64_t>::max();
  double duration_seconds = std::numeric_limits<double>::infinity();
  std::int64_t clients = 0;
  std::int64_t prefix = 0;    // tokens at the head of every prompt of a group
  std::int64_t prefixes = 1;  // groups
  std::int64_t adapters = 0;
  std::string class_name;
  std::unique_ptr<Distribution> input;
  std::unique_ptr<Distribution> output;
  std::unique_ptr<Distribution> think;     // seconds
  std::unique_ptr<Distribution> patience;  // seconds
  std::unique_ptr<Distribution> priority;
};

const std::vector<std::string>& process_names() {
  static const std::vector<std::string> names = {"poisson", "gamma", "constant", "batch", "closed"};
  return names;
}
const std::vector<std::string>& key_names() {
  static const std::vector<std::string> names = {
      "rate",   "cv",     "requests", "duration", "clients",  "think",    "input",
      "output", "prefix", "prefixes", "patience", "priority", "adapters", "class"};
  return names;
}

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) {
    out += (out.empty() ? "" : ", ") + name;
  }
  return out;
}

// "a=1,b=f(2,3)" at the commas outside parentheses.
std::vector<std::string> split_settings(std::string_view text) {
  std::vector<std::string> out;
  std::string current;
  int depth = 0;
  for (const char letter : text) {
    depth += letter == '(' ? 1 : letter == ')' ? -1 : 0;
    if (letter == ',' && depth == 0) {
      out.push_back(std::exchange(current, {}));
    } else {
      current += letter;
    }
  }
  out.push_back(std::move(current));
  return out;
}

class Parser {
 public:
  Description parse(const std::string& spec);

 private:
  void set(const std::string& key, const std::string& value);
  void complain(const std::string& place, const std::string& value, std::string expected,
                std::string hint = {}) {
    problems_.add({kSource, place, value, std::move(expected), std::move(hint)});
  }
  double positive(const std::string& key, const std::string& value, double most) {
    const auto number = parse_number(value);
    if (!number || *number <= 0 || *number > most) {
      complain(key, value, fmt::format("a number above 0 up to {:g}", most));
      return 1;
    }
    return *number;
  }
  std::int64_t count(const std::string& key, const std::string& value, std::int64_t least,
                     std::int64_t most) {
    const auto number = parse_count(value);
    if (!number || *number < least || *number > most) {
      complain(key, value, fmt::format("a whole number from {} to {}", least, most));
      return least;
    }
    return *number;
  }
  void check_whole();

  Description out_;
  Problems problems_;
  std::vector<std::string> seen_;
};

void Parser::set(const std::string& key, const std::string& value) {
  constexpr std::int64_t kMost = 1'000'000'000'000;
  if (std::find(seen_.begin(), seen_.end(), key) != seen_.end()) {
    complain(key, value, "each key once");
  }
  seen_.push_back(key);
  try {
    if (key == "rate") {
      out_.rate = positive(key, value, 1e9);
    } else if (key == "cv") {
      out_.cv = positive(key, value, 1000);
    } else if (key == "requests") {
      out_.requests = count(key, value, 1, kMost);
    } else if (key == "duration") {
      out_.duration_seconds = positive(key, value, 1e9);
    } else if (key == "clients") {
      out_.clients = count(key, value, 1, 1'000'000);
    } else if (key == "prefix") {
      out_.prefix = count(key, value, 0, kMaxTokens);
    } else if (key == "prefixes") {
      out_.prefixes = count(key, value, 1, kMost);
    } else if (key == "adapters") {
      out_.adapters = count(key, value, 0, 1'000'000);
    } else if (key == "class") {
      out_.class_name = value;
      if (value.empty()) {
        complain(key, value, "a name");
      }
    } else if (key == "think") {
      out_.think = parse_distribution(value, key);
    } else if (key == "patience") {
      out_.patience = parse_distribution(value, key);
    } else if (key == "priority") {
      out_.priority = parse_distribution(value, key);
    } else if (key == "input") {
      out_.input = parse_distribution(value, key);
    } else if (key == "output") {
      out_.output = parse_distribution(value, key);
    } else {
      complain(key, value, "one of " + joined(key_names()), did_you_mean(key, key_names()));
    }
  } catch (const ConfigError& error) {
    problems_.take(error);
  }
}

void Parser::check_whole() {
  const auto given = [this](const char* key) {
    return std::find(seen_.begin(), seen_.end(), key) != seen_.end();
  };
  const auto need = [&](const char* key, const char* example) {
    if (!given(key)) {
      complain(key, "", std::string(key) + "=" + example + " for " + out_.process_name);
    }
  };
  const auto refuse = [&](const char* key, const char* why) {
    if (given(key)) {
      complain(key, "", std::string("no ") + key + " for " + out_.process_name, why);
    }
  };
  need("input", "lognormal(1024,0.8)");
  need("output", "uniform(64,512)");
  const bool timed = out_.process == Process::kPoisson || out_.process == Process::kGamma ||
                     out_.process == Process::kConstant;
  if (timed) {
    need("rate", "5");
  } else {
    refuse("rate", "arrivals do not come at a rate");
    refuse("duration", "give requests=N");
  }
  if (out_.process == Process::kGamma) {
    need("cv", "2");
  } else {
    refuse("cv", "only gamma has one");
  }
  if (out_.process == Process::kClosed) {
    need("clients", "16");
  } else {
    refuse("clients", "only closed has them");
    refuse("think", "only closed has it");
  }
  if (!given("requests") && !(timed && given("duration"))) {
    complain("requests", "", timed ? "requests=1000 or duration=60" : "requests=1000");
  }
  if (given("prefixes") && !given("prefix")) {
    complain("prefix", "", "prefix=N, the tokens that a group of requests shares");
  }
}

Description Parser::parse(const std::string& spec) {
  const std::size_t colon = std::min(spec.find(':'), spec.size());
  out_.process_name = spec.substr(0, colon);
  const auto& names = process_names();
  const auto found = std::find(names.begin(), names.end(), out_.process_name);
  if (found == names.end()) {
    complain("", out_.process_name.substr(0, 80),
             "PROCESS:key=value,... with one of " + joined(names) +
                 ", e.g. poisson:rate=5,requests=1000,input=lognormal(1024,0.8),"
                 "output=uniform(64,512)",
             did_you_mean(out_.process_name, names));
    problems_.raise_if_any();
  }
  out_.process = static_cast<Process>(found - names.begin());
  const std::string settings = colon < spec.size() ? spec.substr(colon + 1) : "";
  for (const std::string& setting :
       settings.empty() ? std::vector<std::string>{} : split_settings(settings)) {
    const std::size_t equals = setting.find('=');
    if (equals == std::string::npos) {
      complain("", setting, "key=value", "keys are " + joined(key_names()));
      continue;
    }
    set(setting.substr(0, equals), setting.substr(equals + 1));
  }
  check_whole();
  problems_.raise_if_any();
  return std::move(out_);
}

// Open-loop arrivals; a closed loop is put around it where asked for.
class SyntheticStream : public RequestStream {
 public:
  SyntheticStream(Description description, std::uint64_t seed)
      : description_(std::move(description)),
        gaps_(random_stream(seed, "workload.arrivals")),
        inputs_(random_stream(seed, "workload.input")),
        outputs_(random_stream(seed, "workload.output")),
        thinks_(random_stream(seed, "workload.think")),
        groups_(random_stream(seed, "workload.prefix")),
        patience_(random_stream(seed, "workload.patience")),
        priorities_(random_stream(seed, "workload.priority")),
        adapters_(random_stream(seed, "workload.adapter")),
        scope_(mix_seed(seed)) {
    summary_.format = description_.process_name;
  }

  std::optional<SimTime> next_arrival() override {
    return at_end() ? std::nullopt : std::optional(arrival_);
  }
  void take(TraceRequest& out) override;
  bool at_end() override {
    return summary_.kept >= description_.requests ||
           arrival_.seconds() > description_.duration_seconds;
  }
  [[nodiscard]] ReadSummary summary() const override { return summary_; }

 private:
  static std::uint64_t mix_seed(std::uint64_t seed) {
    return content_id(text_key("synthetic"), seed);
  }
  Tokens length(const Distribution& distribution, RandomStream& stream, const char* name);
  static Nanos span(const Distribution& distribution, RandomStream& stream);
  Nanos gap();

  Description description_;
  RandomStream gaps_;
  RandomStream inputs_;
  RandomStream outputs_;
  RandomStream thinks_;
  RandomStream groups_;
  RandomStream patience_;
  RandomStream priorities_;
  RandomStream adapters_;
  std::uint64_t scope_;
  ReadSummary summary_;
  SimTime arrival_;
};

// Rounded to whole tokens and kept within 1 and kMaxTokens; what that changed is counted.
Tokens SyntheticStream::length(const Distribution& distribution, RandomStream& stream,
                               const char* name) {
  const double drawn = distribution.draw(stream);
  const double kept = std::clamp(std::round(drawn), 1.0, static_cast<double>(kMaxTokens));
  if (kept != std::round(drawn)) {
    ReadSummary::Reason& entry =
        summary_.changed[std::string(name) +
                         (kept == 1 ? " below 1 raised to 1" : " above 100,000,000 cut")];
    if (entry.count++ == 0) {
      entry.first = fmt::format("request {}", summary_.kept);
    }
  }
  return Tokens{static_cast<std::int64_t>(kept)};
}

Nanos SyntheticStream::span(const Distribution& distribution, RandomStream& stream) {
  const double seconds = std::clamp(distribution.draw(stream), 0.0, kLongestGapSeconds);
  return Nanos{std::llround(seconds * kNanosPerSecond)};
}

Nanos SyntheticStream::gap() {
  const double mean = description_.rate > 0 ? 1 / description_.rate : 0;
  double seconds = 0;
  switch (description_.process) {
    case Process::kPoisson:
      seconds = mean * exponential1(gaps_);
      break;
    case Process::kGamma: {
      const double variance = description_.cv * description_.cv;
      seconds = gamma(gaps_, 1 / variance, mean * variance);
      break;
    }
    case Process::kConstant:
      seconds = mean;
      break;
    case Process::kBatch:
    case Process::kClosed:
      break;
  }
  return Nanos{std::llround(std::min(seconds, kLongestGapSeconds) * kNanosPerSecond)};
}

void SyntheticStream::take(TraceRequest& out) {
  OOMCAST_CHECK(!at_end(), "the stream is over");
  const std::int64_t number = summary_.kept;
  out = TraceRequest{};
  out.index = number;
  out.arrival = arrival_;
  out.input = length(*description_.input, inputs_, "input");
  out.output = length(*description_.output, outputs_, "output");
  if (description_.think) {
    out.think = span(*description_.think, thinks_);
  }
  if (description_.patience) {
    out.patience = span(*description_.patience, patience_);
  }
  if (description_.priority) {
    out.priority = std::llround(
        std::clamp(description_.priority->draw(priorities_), -kMostPriority, kMostPriority));
  }
  if (!description_.class_name.empty()) {
    out.id = fmt::format("{}-{}", description_.class_name, number);
  }
  std::uint64_t scope = scope_;
  if (description_.adapters > 0) {
    out.adapter = fmt::format("adapter-{}", uniform_int(adapters_, 1, description_.adapters));
    scope = content_id(scope_, text_key(out.adapter));
  }
  if (description_.prefix > 0) {
    // The prefix comes on top of the drawn length.
    const auto group =
        static_cast<std::uint64_t>(uniform_int(groups_, 0, description_.prefixes - 1));
    out.content.push_back({content_id(scope, group), Tokens{description_.prefix}});
    out.content.push_back({content_id(scope_ + 1, static_cast<std::uint64_t>(number)), out.input});
    out.input += Tokens{description_.prefix};
  }
  ++summary_.read;
  ++summary_.kept;
  arrival_ = arrival_ + gap();
}

}  // namespace

std::unique_ptr<RequestStream> make_synthetic(const std::string& spec, std::uint64_t seed) {
  Description description = Parser().parse(spec);
  const bool closed = description.process == Process::kClosed;
  const std::int64_t clients = description.clients;
  auto stream = std::make_unique<SyntheticStream>(std::move(description), seed);
  if (closed) {
    return close_loop(std::move(stream), clients, Nanos{});
  }
  return stream;
}

}  // namespace oomcast::workloads
