#include "sim/logs/log_reader.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "sim/core/error.hpp"
#include "sim/logs/log_line.hpp"
#include "sim/logs/matcher.hpp"
#include "sim/logs/run_builder.hpp"
#include "workloads/byte_source.hpp"

namespace oomcast::logs {
namespace {

// Rows that only name something: they belong to whatever start they are found beside.
bool only_names(const Row& row) {
  return !row.starts && !row.enters && !row.failure &&
         std::all_of(
             row.captures.begin(),
             row.captures.begin() + static_cast<std::ptrdiff_t>(row.capture_count),
             [](const Capture& capture) { return std::holds_alternative<Text>(capture.field); });
}

// Sorts matched lines into engine starts.
class Sorter {
 public:
  Sorter(EngineLog& log, const Matcher& matcher) : log_(log), matcher_(matcher) {}

  void take(const LogLine& line, std::int64_t number) {
    matcher_.match(line.text, found_);
    for (const Match& match : found_) {
      if (RunBuilder* run = run_for(match, line.stream, number)) {
        run->take(match, line.text, line.rank, number, log_.odd_numbers);
      }
    }
  }

  void finish() {
    for (const auto& run : runs_) {
      log_.runs.push_back(run->finish());
    }
  }

  [[nodiscard]] bool found_anything() const { return !runs_.empty(); }

 private:
  struct Name {
    Text which;
    std::string value;
    std::int64_t line;
  };

  // nullptr for a line that no start takes.
  RunBuilder* run_for(const Match& match, const std::string& stream, std::int64_t number) {
    const auto engine = match.table->engine;
    const Row& row = *match.row;
    if (log_.further_runs > 0) {
      log_.further_runs += row.starts ? 1 : 0;
      return nullptr;
    }
    RunBuilder* current = current_run(stream, engine);
    if (current == nullptr && only_names(row)) {
      remember(match, stream, number);
      return nullptr;
    }
    if (current == nullptr && !engine && !row.failure) {
      return nullptr;  // a server's or a traceback's line beside no engine
    }
    if (current == nullptr || (row.starts && current->has_begun())) {
      if (runs_.size() == kMostRuns) {
        log_.further_runs = 1;
        return nullptr;
      }
      current = begin(stream, engine, number);
    }
    if (engine) {
      latest_[stream] = current;
    }
    return current;
  }

  // The start that a line of `engine` (none: of any) belongs to.
  RunBuilder* current_run(const std::string& stream, std::optional<launch::Engine> engine) {
    if (!engine) {
      const auto found = latest_.find(stream);
      return found == latest_.end() ? nullptr : found->second;
    }
    const auto found = current_.find({stream, engine});
    if (found != current_.end()) {
      return found->second;
    }
    // An error that came before the first line that names the engine.
    const auto nameless = current_.find({stream, std::nullopt});
    if (nameless == current_.end()) {
      return nullptr;
    }
    RunBuilder* run = nameless->second;
    current_.erase(nameless);
    run->set_engine(*engine);
    take_names(*run, stream, engine);
    current_[{stream, engine}] = run;
    return run;
  }

  RunBuilder* begin(const std::string& stream, std::optional<launch::Engine> engine,
                    std::int64_t number) {
    runs_.push_back(std::make_unique<RunBuilder>(stream, number));
    RunBuilder* run = runs_.back().get();
    if (engine) {
      run->set_engine(*engine);
    }
    take_names(*run, stream, std::nullopt);
    if (engine) {
      take_names(*run, stream, engine);
    }
    current_[{stream, engine}] = run;
    latest_[stream] = run;
    return run;
  }

  void remember(const Match& match, const std::string& stream, std::int64_t number) {
    constexpr std::size_t kMost = 64;
    if (names_.size() >= kMost) {
      return;
    }
    std::vector<Name>& names = names_[{stream, match.table->engine}];
    for (std::size_t i = 0; i < match.row->capture_count && names.size() < kMost; ++i) {
      names.push_back(
          {std::get<Text>(match.row->captures[i].field), std::string(match.groups[i]), number});
    }
  }

  void take_names(RunBuilder& run, const std::string& stream,
                  std::optional<launch::Engine> engine) {
    const auto found = names_.find({stream, engine});
    if (found == names_.end()) {
      return;
    }
    for (const Name& name : found->second) {
      run.set_text(name.which, name.value, name.line, Again::kKeep);
    }
    names_.erase(found);
  }

  using Key = std::pair<std::string, std::optional<launch::Engine>>;

  EngineLog& log_;
  const Matcher& matcher_;
  std::vector<Match> found_;
  std::vector<std::unique_ptr<RunBuilder>> runs_;
  std::map<Key, RunBuilder*> current_;
  std::map<std::string, RunBuilder*> latest_;
  std::map<Key, std::vector<Name>> names_;
};

void read_lines(workloads::LineReader& reader, EngineLog& log, Sorter& sorter) {
  LineUnwrapper unwrapper;
  std::string_view raw;
  try {
    while (reader.next(raw)) {
      if (raw.size() > kMostLineBytes) {
        ++log.cut_lines;
        raw = raw.substr(0, kMostLineBytes);
      }
      for (const LogLine& line : unwrapper.unwrap(raw)) {
        sorter.take(line, reader.line_number());
      }
    }
  } catch (const ConfigError& error) {
    // What was read before a damaged place is worth as much as without it.
    if (reader.line_number() == 0) {
      throw;
    }
    log.ended_early = error.what();
  }
  log.lines = reader.line_number();
  log.unreadable_bytes = unwrapper.unreadable_bytes();
}

EngineLog read_with(workloads::LineReader& reader, const Matcher& matcher) {
  EngineLog log;
  log.name = reader.name();
  Sorter sorter(log, matcher);
  read_lines(reader, log, sorter);
  sorter.finish();
  return log;
}

[[noreturn]] void refuse(const EngineLog& log) {
  throw ConfigError(Problem{
      log.name, "",
      log.unreadable_bytes > 0
          ? fmt::format("{} lines, {} bytes that are no text", log.lines, log.unreadable_bytes)
          : fmt::format("{} lines", log.lines),
      "lines that vLLM, SGLang, TensorRT-LLM or PyTorch print",
      log.ended_early.empty() ? "the engine's own output, from its first line on"
                              : log.ended_early});
}

// Notes are short; in a long text the same words mean other things.
constexpr std::size_t kMostNotes = std::size_t{8} << 10;
constexpr std::int64_t kMostNoteLines = 16;

// The readings of the engine whose words the notes use most; of that of `run`, if it is known.
std::optional<EngineRun> read_notes(const std::string& text, const EngineRun* run) {
  // Compiled once: it takes longer than most logs.
  static const std::array<Matcher, 3> kMatchers = {Matcher(note_tables().subspan(0, 1)),
                                                   Matcher(note_tables().subspan(1, 1)),
                                                   Matcher(note_tables().subspan(2, 1))};
  std::optional<EngineRun> best;
  for (std::size_t i = 0; i < kMatchers.size(); ++i) {
    const Table& table = note_tables()[i];
    if (run != nullptr && run->engine && *run->engine != table.engine) {
      continue;
    }
    workloads::LineReader reader(text, "notes");
    EngineLog notes = read_with(reader, kMatchers[i]);
    if (!notes.runs.empty() &&
        (!best || notes.runs.front().readings.size() > best->readings.size())) {
      best = std::move(notes.runs.front());
    }
  }
  return best;
}

// Adds what the run does not have from its own lines; false if that is nothing.
bool merge(EngineRun& run, const EngineRun& notes) {
  const std::size_t before = run.readings.size();
  run.engine = run.engine ? run.engine : notes.engine;
  for (Reading reading : notes.readings) {
    if (run.nearest(reading.figure, 0) == nullptr) {
      reading.rank = 0;  // ranks of the notes are not those of the run
      run.readings.push_back(reading);
    }
  }
  const bool failure_noted = run.failures.empty() && !notes.failures.empty();
  if (failure_noted) {
    run.failures = notes.failures;
    for (Failure& failure : run.failures) {
      failure.rank = 0;
    }
  }
  return failure_noted || run.readings.size() > before;
}

EngineLog read_all(workloads::LineReader& reader) {
  const std::string beginning(reader.peek(kMostNotes + 1));
  static const Matcher kMatcher(log_tables());
  EngineLog log = read_with(reader, kMatcher);
  if (beginning.size() <= kMostNotes && log.lines <= kMostNoteLines && log.runs.size() <= 1) {
    if (const auto notes = read_notes(beginning, log.runs.empty() ? nullptr : &log.runs.front())) {
      if (log.runs.empty()) {
        log.runs.push_back(*notes);
        log.from_notes = true;
      } else {
        log.from_notes = merge(log.runs.front(), *notes);
      }
    }
  }
  if (log.runs.empty()) {
    refuse(log);
  }
  return log;
}

}  // namespace

EngineLog read_log(const std::string& path) {
  workloads::LineReader reader(path);
  return read_all(reader);
}

EngineLog read_log_text(std::string text, const std::string& name) {
  workloads::LineReader reader(std::move(text), name);
  return read_all(reader);
}

}  // namespace oomcast::logs
