#include "workloads/formats/agentic.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/core/json.hpp"
#include "workloads/id_lists.hpp"
#include "workloads/row_reader.hpp"

namespace oomcast::workloads::formats {
namespace {

// One request of a session; its block ids are one of the session's lists.
struct Turn {
  std::int64_t input = -1;
  std::int64_t output = -1;
  Nanos think;
  std::optional<std::size_t> ids;  // its list
};

// Requests that follow each other: those of the session itself, or of one sub-agent.
struct Thread {
  std::vector<Turn> turns;
  // Starts when this many turns of its parent were answered; the session's own starts at once.
  std::size_t parent = 0;
  std::size_t after_turns = 0;
};

struct Session {
  std::string id;
  std::string hash_scope = "local";
  std::int64_t block_size = 64;
  std::vector<Thread> threads;
  IdLists ids;
};

// Builds a session from the events of one JSON line.
class SessionBuilder : public nlohmann::json_sax<Json> {
 public:
  // With the lists of block ids that were taken out of the line, if they were.
  explicit SessionBuilder(std::optional<IdLists> lists) : lists_apart_(lists.has_value()) {
    if (lists) {
      session.ids = *std::move(lists);
    }
  }
  [[nodiscard]] bool all_lists_used() const { return next_list_ == session.ids.size(); }

  Session session;
  std::string problem;

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t value) override { return number(value, {}); }
  bool number_unsigned(number_unsigned_t value) override {
    return number(
        value > static_cast<number_unsigned_t>(INT64_MAX) ? -1 : static_cast<std::int64_t>(value),
        {});
  }
  bool number_float(number_float_t /*value*/, const string_t& written) override {
    return number(std::nullopt, written);
  }
  bool string(string_t& value) override;
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_object(std::size_t /*elements*/) override;
  bool end_object() override;
  bool start_array(std::size_t /*elements*/) override;
  bool end_array() override {
    frames_.pop_back();
    return true;
  }
  bool key(string_t& name) override {
    frames_.back().key = name;
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    problem = fmt::format("valid JSON (column {})", position);
    return false;
  }

 private:
  struct Frame {
    enum class Kind { kSession, kRequests, kRequest, kIds, kOther };
    Kind kind = Kind::kOther;
    std::string key;         // of the member being read
    std::size_t thread = 0;  // requests: the thread they belong to
    Turn turn;               // request: what was read of it
    std::optional<std::int64_t> time_ns;
    std::optional<std::int64_t> think_ns;
    bool is_subagent = false;
  };

  bool number(std::optional<std::int64_t> whole, const std::string& written);
  bool push(Frame frame);

  bool lists_apart_;
  std::size_t next_list_ = 0;
  std::vector<Frame> frames_;
  std::vector<std::int64_t> last_time_ns_;  // of each thread's latest turn
};

bool SessionBuilder::push(Frame frame) {
  if (frames_.size() >= static_cast<std::size_t>(kMaxJsonDepth)) {
    problem = fmt::format("JSON nested at most {} levels", kMaxJsonDepth);
    return false;
  }
  frames_.push_back(std::move(frame));
  return true;
}

bool SessionBuilder::start_object(std::size_t /*elements*/) {
  Frame frame;
  if (frames_.empty()) {
    frame.kind = Frame::Kind::kSession;
  } else if (frames_.back().kind == Frame::Kind::kRequests) {
    frame.kind = Frame::Kind::kRequest;
    frame.thread = frames_.back().thread;
  }
  return push(std::move(frame));
}

bool SessionBuilder::start_array(std::size_t /*elements*/) {
  if (frames_.empty()) {
    problem = "a JSON object, not a list";
    return false;
  }
  Frame frame;
  const Frame& outer = frames_.back();
  if (outer.key == "requests" && outer.kind == Frame::Kind::kSession) {
    frame.kind = Frame::Kind::kRequests;
    session.threads.emplace_back();
    last_time_ns_.push_back(0);
    frame.thread = session.threads.size() - 1;
  } else if (outer.key == "requests" && outer.kind == Frame::Kind::kRequest) {
    frame.kind = Frame::Kind::kRequests;
    Thread thread;
    thread.parent = outer.thread;
    thread.after_turns = session.threads[outer.thread].turns.size();
    session.threads.push_back(std::move(thread));
    last_time_ns_.push_back(0);
    frame.thread = session.threads.size() - 1;
    frames_.back().is_subagent = true;
  } else if (outer.key == "hash_ids" && outer.kind == Frame::Kind::kRequest) {
    frame.kind = Frame::Kind::kIds;
    frames_.back().turn.ids = next_list_;
  }
  if (outer.key == "hash_ids" && (lists_apart_ || frame.kind == Frame::Kind::kIds)) {
    if (!lists_apart_) {
      session.ids.open();
    } else if (all_lists_used()) {
      return false;
    }
    ++next_list_;
  }
  return push(std::move(frame));
}

bool SessionBuilder::end_object() {
  Frame frame = std::move(frames_.back());
  frames_.pop_back();
  if (frame.kind != Frame::Kind::kRequest || frame.is_subagent) {
    return true;
  }
  // Older recordings lack think_time: the gap between the requests stands in for it.
  std::int64_t& last = last_time_ns_[frame.thread];
  const std::int64_t gap = frame.time_ns ? std::max<std::int64_t>(*frame.time_ns - last, 0) : 0;
  last = frame.time_ns.value_or(last);
  frame.turn.think = Nanos{frame.think_ns.value_or(gap)};
  session.threads[frame.thread].turns.push_back(frame.turn);
  return true;
}

bool SessionBuilder::string(string_t& value) {
  if (frames_.empty()) {
    problem = "a JSON object";
    return false;
  }
  Frame& frame = frames_.back();
  if (frame.kind == Frame::Kind::kSession && frame.key == "id") {
    session.id = value;
  } else if (frame.kind == Frame::Kind::kSession && frame.key == "hash_id_scope") {
    session.hash_scope = value;
  } else if (frame.kind == Frame::Kind::kRequest && frame.key == "type") {
    frame.is_subagent = frame.is_subagent || value == "subagent";
  } else if (frame.kind == Frame::Kind::kIds) {
    problem = "whole numbers in hash_ids";
    return false;
  }
  return true;
}

bool SessionBuilder::number(std::optional<std::int64_t> whole, const std::string& written) {
  if (frames_.empty()) {
    problem = "a JSON object";
    return false;
  }
  Frame& frame = frames_.back();
  const auto complain = [&](const char* expected) {
    problem = fmt::format("{}: {}", frame.key, expected);
    return false;
  };
  if (frame.kind == Frame::Kind::kIds) {
    if (!whole) {
      problem = "whole numbers in hash_ids";
      return false;
    }
    session.ids.push(*whole);
    return true;
  }
  if (frame.kind == Frame::Kind::kSession && frame.key == "block_size") {
    if (!whole || *whole < 1 || *whole > kMaxTokens) {
      return complain("a positive number of tokens");
    }
    session.block_size = *whole;
  }
  if (frame.kind != Frame::Kind::kRequest) {
    return true;
  }
  if (frame.key == "in" || frame.key == "out") {
    if (!whole || *whole < 0 || *whole > kMaxTokens) {
      return complain("a whole number of tokens from 0 to 100,000,000");
    }
    (frame.key == "in" ? frame.turn.input : frame.turn.output) = *whole;
  } else if (frame.key == "t" || frame.key == "think_time") {
    const auto nanos =
        whole ? scaled_decimal(fmt::format("{}", *whole), 9) : scaled_decimal(written, 9);
    if (!nanos || *nanos < 0) {
      return complain("seconds of at least 0");
    }
    (frame.key == "t" ? frame.time_ns : frame.think_ns) = nanos;
  }
  return true;
}

class AgenticStream : public RequestStream {
 public:
  AgenticStream(std::unique_ptr<LineReader> lines, const TraceOptions& options)
      : lines_(std::move(lines)), options_(options) {
    summary_.format = kAgenticName;
    summary_.notes.push_back(
        fmt::format("{} sessions at once; a turn comes its think time after the answer before it",
                    options_.concurrent_sessions));
    free_slots_.assign(static_cast<std::size_t>(options_.concurrent_sessions), SimTime{});
    // The first session shows whether the file is one at all.
    start_sessions();
  }

  std::optional<SimTime> next_arrival() override {
    start_sessions();
    return ready_.empty() ? std::nullopt : std::optional(ready_.front().arrival);
  }

  void take(TraceRequest& out) override;
  bool at_end() override {
    start_sessions();
    return ready_.empty() && in_flight_.empty();
  }
  void on_finished(std::int64_t index, SimTime now) override;
  [[nodiscard]] bool is_closed_loop() const override { return true; }
  [[nodiscard]] ReadSummary summary() const override { return summary_; }

 private:
  struct Running {
    Session session;
    std::uint64_t scope = 0;
    std::vector<std::size_t> answered;  // by thread
    std::size_t open_threads = 0;
  };
  struct Step {
    SimTime arrival;
    std::int64_t sequence = 0;
    std::shared_ptr<Running> running;
    std::size_t thread = 0;
  };
  static bool later(const Step& left, const Step& right) {
    return left.arrival != right.arrival ? left.arrival > right.arrival
                                         : left.sequence > right.sequence;
  }

  void start_sessions();
  std::shared_ptr<Running> read_session();
  void keep_useful_turns(Session& session);
  void begin_threads(const std::shared_ptr<Running>& running, std::size_t parent, SimTime now);
  void advance(const std::shared_ptr<Running>& running, std::size_t thread, SimTime now);

  std::unique_ptr<LineReader> lines_;
  std::string rest_;  // of the line under way
  TraceOptions options_;
  ReadSummary summary_;
  std::vector<SimTime> free_slots_;  // since when
  std::vector<Step> ready_;          // heap, earliest first
  std::unordered_map<std::int64_t, Step> in_flight_;
  std::int64_t sequence_ = 0;
  std::int64_t index_ = 0;
  std::uint64_t sessions_read_ = 0;
  bool exhausted_ = false;
};

// Turns without output are dropped or shortened by the option; their think time goes to the next.
void AgenticStream::keep_useful_turns(Session& session) {
  const std::string where = lines_->name() + " " + lines_->place();
  const auto note = [&](std::map<std::string, ReadSummary::Reason>& reasons, const char* reason) {
    ReadSummary::Reason& entry = reasons[reason];
    if (entry.count++ == 0) {
      entry.first = where;
    }
  };
  for (std::size_t at = 0; at < session.threads.size(); ++at) {
    Thread& thread = session.threads[at];
    std::vector<Turn> kept;
    std::vector<std::size_t> kept_before(thread.turns.size() + 1, 0);
    Nanos carried;
    for (std::size_t i = 0; i < thread.turns.size(); ++i) {
      Turn turn = thread.turns[i];
      ++summary_.read;
      kept_before[i] = kept.size();
      const char* reason = turn.input < 0    ? "no input length"
                           : turn.output < 0 ? "no output length"
                           : turn.input == 0 ? "input 0"
                                             : nullptr;
      if (reason == nullptr && turn.output == 0) {
        if (options_.zero_output == TraceOptions::ZeroOutput::kDrop) {
          reason = "output 0";
        } else {
          note(summary_.changed, "output 0 read as 1");
          turn.output = 1;
        }
      }
      if (reason != nullptr) {
        note(summary_.dropped, reason);
        carried += turn.think;
        continue;
      }
      turn.think += std::exchange(carried, Nanos{});
      ++summary_.kept;
      kept.push_back(turn);
    }
    kept_before[thread.turns.size()] = kept.size();
    for (Thread& child : session.threads) {
      if (&child != &session.threads[0] && child.parent == at) {
        child.after_turns = kept_before[child.after_turns];
      }
    }
    thread.turns = std::move(kept);
  }
}

std::shared_ptr<AgenticStream::Running> AgenticStream::read_session() {
  std::string_view line;
  do {
    if (!lines_->next(line)) {
      exhausted_ = true;
      return nullptr;
    }
  } while (line.find_first_not_of(" \t") == std::string_view::npos);
  IdLists lists;
  const bool apart = take_out_lists(line, "hash_ids", rest_, lists);
  SessionBuilder builder(apart ? std::optional(std::move(lists)) : std::nullopt);
  bool parsed = apart && Json::sax_parse(rest_, &builder) && builder.all_lists_used();
  if (!parsed) {
    builder = SessionBuilder(std::nullopt);
    parsed = Json::sax_parse(line.begin(), line.end(), &builder);
  }
  if (!parsed || builder.session.threads.empty()) {
    throw ConfigError(
        Problem{lines_->name(), lines_->place(), std::string(line.substr(0, 100)),
                builder.problem.empty() ? "a session with a list `requests`" : builder.problem,
                "one session a line"});
  }
  auto running = std::make_shared<Running>();
  running->session = std::move(builder.session);
  Session& session = running->session;
  for (const Thread& thread : session.threads) {
    for (const Turn& turn : thread.turns) {
      const std::int64_t ids = turn.ids ? session.ids[*turn.ids].ids : 0;
      if (turn.input >= 0 && ids != turn.input / session.block_size) {
        throw ConfigError(
            Problem{lines_->name(), lines_->place() + " hash_ids",
                    fmt::format("{} ids for {} tokens", ids, turn.input),
                    fmt::format("one id for every whole {} tokens", session.block_size), ""});
      }
    }
  }
  keep_useful_turns(session);
  // Local ids of two sessions are unrelated, even of one session that stands in the file twice.
  running->scope = session.hash_scope == "global" ? text_key("agentic global")
                                                  : content_id(text_key("agentic"), sessions_read_);
  ++sessions_read_;
  running->answered.assign(session.threads.size(), 0);
  running->open_threads = session.threads.size();
  return running;
}

void AgenticStream::start_sessions() {
  while (!free_slots_.empty() && !exhausted_) {
    const auto running = read_session();
    if (running == nullptr) {
      return;
    }
    const SimTime start = free_slots_.back();
    free_slots_.pop_back();
    advance(running, 0, start);
  }
}

// Sends the thread's next turn, or closes the thread.
void AgenticStream::advance(const std::shared_ptr<Running>& running, std::size_t thread,
                            SimTime now) {
  begin_threads(running, thread, now);
  const Thread& current = running->session.threads[thread];
  const std::size_t next = running->answered[thread];
  if (next < current.turns.size()) {
    const Nanos think = next == 0 ? Nanos{} : current.turns[next].think;
    ready_.push_back({now + think, sequence_++, running, thread});
    std::push_heap(ready_.begin(), ready_.end(), later);
    return;
  }
  if (--running->open_threads == 0) {
    free_slots_.push_back(now);
  }
}

// Sub-agents that start once this many turns of `parent` were answered.
void AgenticStream::begin_threads(const std::shared_ptr<Running>& running, std::size_t parent,
                                  SimTime now) {
  const auto& threads = running->session.threads;
  for (std::size_t child = 1; child < threads.size(); ++child) {
    if (threads[child].parent == parent &&
        threads[child].after_turns == running->answered[parent]) {
      advance(running, child, now);
    }
  }
}

void AgenticStream::take(TraceRequest& out) {
  OOMCAST_CHECK(next_arrival().has_value(), "no request is known");
  std::pop_heap(ready_.begin(), ready_.end(), later);
  Step step = std::move(ready_.back());
  ready_.pop_back();
  const Session& session = step.running->session;
  const std::size_t number = step.running->answered[step.thread];
  const Turn& turn = session.threads[step.thread].turns[number];
  // Sub-agents share no ids with their parent.
  const std::uint64_t scope = session.hash_scope == "global"
                                  ? step.running->scope
                                  : content_id(step.running->scope, step.thread);
  out.index = index_++;
  out.id = fmt::format("{}/{}/{}", session.id, step.thread, number);
  out.arrival = step.arrival;
  out.input = Tokens{turn.input};
  out.output = Tokens{turn.output};
  out.content.clear();
  if (turn.ids) {
    const IdLists::List& list = session.ids[*turn.ids];
    for (std::size_t run = list.begin; run < list.end; ++run) {
      append_blocks(out.content, scope, session.ids.run(run), session.block_size);
    }
  }
  if (const std::int64_t rest = turn.input % session.block_size; rest > 0) {
    out.content.push_back(
        {content_id(text_key("agentic rest"), static_cast<std::uint64_t>(out.index)),
         Tokens{rest}});
  }
  out.output_continues_content = false;
  out.session = scope;
  out.parent_id = number == 0 ? "" : fmt::format("{}/{}/{}", session.id, step.thread, number - 1);
  out.turn = static_cast<std::int32_t>(number) + 1;
  out.think = number == 0 ? Nanos{} : turn.think;
  out.patience.reset();
  out.priority = 0;
  out.adapter.clear();
  in_flight_.emplace(out.index, std::move(step));
}

void AgenticStream::on_finished(std::int64_t index, SimTime now) {
  const auto found = in_flight_.find(index);
  if (found == in_flight_.end()) {
    return;
  }
  const Step step = std::move(found->second);
  in_flight_.erase(found);
  ++step.running->answered[step.thread];
  advance(step.running, step.thread, now);
}

}  // namespace

std::unique_ptr<RequestStream> open_agentic(std::unique_ptr<LineReader> lines,
                                            const TraceOptions& options) {
  return std::make_unique<AgenticStream>(std::move(lines), options);
}

}  // namespace oomcast::workloads::formats
