#include "workloads/trace_stream.hpp"

#include <algorithm>
#include <deque>
#include <limits>

namespace oomcast::workloads {
namespace {

// Rows held to put a pipe in order.
constexpr std::size_t kPipeWindow = 4096;
// Ordered runs that are merged from a reader each.
constexpr std::size_t kMostRuns = 64;
// What the rows kept of a first reading may take, so that short files are read once.
constexpr std::size_t kMostKeptBytes = std::size_t{32} << 20;
// What the rows held for sorting may take, block ids included.
constexpr std::size_t kMostHeldBytes = std::size_t{512} << 20;

// What a first reading tells about a file.
struct Order {
  std::int64_t origin_ns = 0;
  std::int64_t lateness_ns = 0;  // largest distance of a row behind the latest arrival before it
  std::string origin;
  // Lines after which an ordered run begins; too many runs: empty.
  std::vector<std::int64_t> runs = {0};
};

struct HeldRow {
  Row row;
  std::int64_t sequence = 0;
};

// Earliest arrival first, file order within ties: the order of a heap whose top is the earliest.
bool later(const HeldRow& left, const HeldRow& right) {
  return left.row.arrival_ns != right.row.arrival_ns ? left.row.arrival_ns > right.row.arrival_ns
                                                     : left.sequence > right.sequence;
}

std::size_t held_bytes(const Row& row) {
  return sizeof(HeldRow) + row.request.content.capacity() * sizeof(ContentSegment) +
         row.request.id.capacity() + row.request.parent_id.capacity();
}

[[noreturn]] void refuse_empty(const ReadSummary& summary, const std::string& name) {
  std::string reasons;
  for (const auto& [reason, entry] : summary.dropped) {
    reasons += fmt::format("{}{} x {}", reasons.empty() ? "" : ", ", entry.count, reason);
  }
  throw ConfigError(Problem{name, "", fmt::format("{} rows, none of use", summary.read),
                            "a trace with at least one request", reasons});
}

// Rows in file order, kept from a first reading while they are few and none was left out. Of most
// traces a row says when and how long, and takes little.
class KeptRows {
 public:
  void add(const Row& row) {
    if (!is_whole_) {
      return;
    }
    const Lengths lengths{row.arrival_ns, row.request.input, row.request.output, row.has_arrival};
    fill(lengths);
    if (row == plain_ && rows_.empty()) {
      lengths_.push_back(lengths);
      bytes_ += sizeof(Lengths);
    } else {
      is_whole_ = is_whole_ && lengths_.empty();
      rows_.push_back(row);
      bytes_ += held_bytes(row);
    }
    if (bytes_ > kMostKeptBytes || !is_whole_) {
      *this = KeptRows{};
      is_whole_ = false;
    }
  }
  // Every row added is here.
  [[nodiscard]] bool is_whole() const { return is_whole_; }
  [[nodiscard]] std::int64_t size() const { return std::ssize(lengths_) + std::ssize(rows_); }
  // Each row once.
  void give(std::int64_t i, Row& row) {
    const auto at = static_cast<std::size_t>(i);
    if (lengths_.empty()) {
      row = std::move(rows_[at]);
    } else {
      fill(lengths_[at]);
      row = plain_;
    }
  }

 private:
  struct Lengths {
    std::int64_t arrival_ns = 0;
    Tokens input;
    Tokens output;
    bool has_arrival = false;
  };
  void fill(const Lengths& lengths) {
    plain_.arrival_ns = lengths.arrival_ns;
    plain_.has_arrival = lengths.has_arrival;
    plain_.request.input = lengths.input;
    plain_.request.output = lengths.output;
  }

  std::vector<Lengths> lengths_;
  std::deque<Row> rows_;
  std::size_t bytes_ = 0;
  bool is_whole_ = true;
  Row plain_;  // one that says nothing else
};

// Gives them as their file would be read again.
class KeptReader final : public RowReader {
 public:
  KeptReader(KeptRows rows, ReadSummary summary)
      : rows_(std::move(rows)), summary_(std::move(summary)) {
    summary_.read = summary_.kept = 0;
  }
  bool next(Row& row) override {
    if (summary_.read == rows_.size()) {
      return false;
    }
    rows_.give(summary_.read, row);
    summary_.kept = ++summary_.read;
    return true;
  }
  [[nodiscard]] ReadSummary summary() const override { return summary_; }

 private:
  KeptRows rows_;
  ReadSummary summary_;
};

Order scan(SeekableRowReader& reader, const std::string& name, KeptRows& kept) {
  Order order;
  Row row;
  std::int64_t latest = std::numeric_limits<std::int64_t>::min();
  std::int64_t previous_ns = latest;
  std::int64_t previous_line = 0;
  bool first = true;
  while (reader.next(row)) {
    kept.add(row);
    if (row.arrival_ns < previous_ns && !order.runs.empty()) {
      order.runs.push_back(previous_line);
      if (order.runs.size() > kMostRuns) {
        order.runs.clear();
      }
    }
    previous_ns = row.arrival_ns;
    previous_line = reader.line();
    if (first || row.arrival_ns < order.origin_ns) {
      order.origin_ns = row.arrival_ns;
      order.origin = reader.arrival_text();
    }
    if (!first && row.arrival_ns < latest) {
      order.lateness_ns = std::max(order.lateness_ns, latest - row.arrival_ns);
    }
    latest = std::max(latest, row.arrival_ns);
    first = false;
  }
  if (first) {
    refuse_empty(reader.summary(), name);
  }
  return order;
}

// Ordered runs of one file, merged by arrival; ties in file order.
class RunMerger : public RowReader {
 public:
  RunMerger(const std::function<std::unique_ptr<SeekableRowReader>()>& open,
            const std::vector<std::int64_t>& begins) {
    for (std::size_t i = 0; i < begins.size(); ++i) {
      Run run;
      run.reader = open();
      run.reader->skip_to(begins[i]);
      run.end_line = i + 1 < begins.size() ? begins[i + 1] : INT64_MAX;
      runs_.push_back(std::move(run));
      advance(runs_.back());
    }
  }

  bool next(Row& row) override {
    Run* earliest = nullptr;
    for (Run& run : runs_) {
      if (run.has_row && (earliest == nullptr || run.row.arrival_ns < earliest->row.arrival_ns)) {
        earliest = &run;
      }
    }
    if (earliest == nullptr) {
      return false;
    }
    std::swap(row, earliest->row);
    advance(*earliest);
    return true;
  }
  [[nodiscard]] ReadSummary summary() const override {
    ReadSummary sum;
    sum.format = runs_[0].reader->summary().format;
    for (const Run& run : runs_) {
      add_summary(sum, run.reader->summary());
    }
    sum.notes.push_back(fmt::format("{} ordered runs were merged", runs_.size()));
    return sum;
  }

 private:
  struct Run {
    std::unique_ptr<SeekableRowReader> reader;
    std::int64_t end_line = 0;  // the run's last row ends there
    Row row;
    bool has_row = false;
  };

  static void advance(Run& run) {
    run.has_row = run.reader->line() < run.end_line && run.reader->next(run.row);
  }

  std::vector<Run> runs_;
};

class RowStream : public RequestStream {
 public:
  // Rows read before, whose order is known.
  RowStream(std::unique_ptr<RowReader> reader, Order order, std::string name)
      : reader_(std::move(reader)), name_(std::move(name)), order_(std::move(order)) {}
  // Rows of a pipe.
  RowStream(std::unique_ptr<RowReader> reader, std::string name)
      : reader_(std::move(reader)), name_(std::move(name)), is_pipe_(true) {}

  std::optional<SimTime> next_arrival() override {
    if (!prepare()) {
      return std::nullopt;
    }
    return SimTime{Nanos{next_.arrival_ns - order_.origin_ns}};
  }

  void take(TraceRequest& out) override {
    OOMCAST_CHECK(prepare(), "the stream is over");
    std::swap(out, next_.request);
    out.index = index_++;
    out.arrival = SimTime{Nanos{next_.arrival_ns - order_.origin_ns}};
    ready_ = false;
  }

  bool at_end() override { return !prepare(); }

  [[nodiscard]] ReadSummary summary() const override {
    ReadSummary summary = reader_->summary();
    summary.origin = order_.origin;
    if (has_no_times_) {
      summary.notes.emplace_back("no arrival times: every request arrives at 0");
    }
    if (order_.lateness_ns > 0) {
      summary.notes.emplace_back("rows were put in order of arrival");
    }
    return summary;
  }

 private:
  bool prepare();
  bool read(Row& row);
  void fill();
  void push(Row&& row);
  void pop(Row& row);

  std::unique_ptr<RowReader> reader_;
  std::string name_;
  Order order_;
  bool is_pipe_ = false;
  std::vector<HeldRow> held_;  // heap
  std::size_t held_bytes_ = 0;
  std::int64_t sequence_ = 0;
  std::int64_t latest_ns_ = std::numeric_limits<std::int64_t>::min();
  std::int64_t given_ns_ = std::numeric_limits<std::int64_t>::min();
  std::int64_t index_ = 0;
  Row next_;
  bool ready_ = false;
  bool exhausted_ = false;
  bool has_no_times_ = false;
};

bool RowStream::read(Row& row) {
  if (exhausted_ || !reader_->next(row)) {
    exhausted_ = true;
    return false;
  }
  has_no_times_ = has_no_times_ || !row.has_arrival;
  latest_ns_ = std::max(latest_ns_, row.arrival_ns);
  return true;
}

void RowStream::push(Row&& row) {
  held_bytes_ += held_bytes(row);
  if (held_bytes_ > kMostHeldBytes) {
    throw ConfigError(Problem{name_, "", "rows far out of order", "rows about in order of arrival",
                              "sort the file by arrival first"});
  }
  held_.push_back({std::move(row), sequence_++});
  std::push_heap(held_.begin(), held_.end(), later);
}

void RowStream::pop(Row& row) {
  std::pop_heap(held_.begin(), held_.end(), later);
  held_bytes_ -= held_bytes(held_.back().row);
  row = std::move(held_.back().row);
  held_.pop_back();
}

// Reads on until the earliest held row can have no earlier one behind it.
void RowStream::fill() {
  Row row;
  const auto settled = [this] {
    return !held_.empty() &&
           (is_pipe_ ? held_.size() >= kPipeWindow
                     : latest_ns_ - held_.front().row.arrival_ns >= order_.lateness_ns);
  };
  while (!settled() && read(row)) {
    push(std::move(row));
    row = Row{};
  }
}

bool RowStream::prepare() {
  if (ready_) {
    return true;
  }
  if (!is_pipe_ && order_.lateness_ns == 0) {
    ready_ = read(next_);
    return ready_;
  }
  const bool first = sequence_ == 0;
  fill();
  if (held_.empty()) {
    if (first) {
      refuse_empty(reader_->summary(), name_);
    }
    return false;
  }
  if (first && is_pipe_) {
    order_.origin_ns = held_.front().row.arrival_ns;
  }
  pop(next_);
  if (next_.arrival_ns < given_ns_) {
    throw ConfigError(Problem{name_, "", "rows far out of order",
                              fmt::format("rows in order of arrival within {} rows", kPipeWindow),
                              "give the trace as a file, or sort it"});
  }
  given_ns_ = next_.arrival_ns;
  ready_ = true;
  return true;
}

}  // namespace

std::unique_ptr<RequestStream> stream_rows(
    const std::function<std::unique_ptr<SeekableRowReader>()>& open, bool rereadable,
    const std::string& name) {
  if (!rereadable) {
    return std::make_unique<RowStream>(open(), name);
  }
  KeptRows kept;
  const std::unique_ptr<SeekableRowReader> first = open();
  const ReadSummary before = first->summary();
  Order order = scan(*first, name, kept);
  if (order.runs.size() > 1) {
    auto merger = std::make_unique<RunMerger>(open, order.runs);
    order.lateness_ns = 0;
    return std::make_unique<RowStream>(std::move(merger), std::move(order), name);
  }
  const ReadSummary after = first->summary();
  if (kept.is_whole() && kept.size() == after.read && after.changed.empty() &&
      after.notes == before.notes) {
    auto rows = std::make_unique<KeptReader>(std::move(kept), before);
    return std::make_unique<RowStream>(std::move(rows), std::move(order), name);
  }
  return std::make_unique<RowStream>(open(), std::move(order), name);
}

std::optional<TraceRequest> next_request(RequestStream& stream) {
  if (!stream.next_arrival()) {
    return std::nullopt;
  }
  TraceRequest request;
  stream.take(request);
  return request;
}

}  // namespace oomcast::workloads
