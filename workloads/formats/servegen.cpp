#include "workloads/formats/servegen.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/error.hpp"
#include "sim/core/json.hpp"
#include "sim/core/random.hpp"
#include "sim/core/units_text.hpp"
#include "workloads/row_reader.hpp"

namespace oomcast::workloads::formats {
namespace {

constexpr std::size_t kMostArchiveBytes = std::size_t{512} << 20;
constexpr double kNanosPerSecond = 1e9;
constexpr std::int64_t kDefaultWindowSeconds = 600;

struct TarMember {
  std::string_view name;
  std::string_view bytes;
};

std::string_view until_zero(std::string_view field) { return field.substr(0, field.find('\0')); }

// Regular files of a tar archive held in memory; views into it.
std::vector<TarMember> tar_members(std::string_view archive, const std::string& name) {
  constexpr std::size_t kBlock = 512;
  std::vector<TarMember> members;
  std::size_t at = 0;
  while (at + kBlock <= archive.size() && archive[at] != '\0') {
    const std::string_view header = archive.substr(at, kBlock);
    const std::string_view digits = until_zero(header.substr(124, 12));
    const std::size_t first = digits.find_first_not_of(' ');
    std::size_t size = 0;
    const char* begin = digits.data() + std::min(first, digits.size());
    const auto [end, error] = std::from_chars(begin, digits.data() + digits.size(), size, 8);
    if (!is_tar(header) || error != std::errc{} || size > archive.size() - at - kBlock) {
      throw ConfigError(Problem{name, fmt::format("byte {}", at), "", "a whole tar archive", ""});
    }
    const char type = header[156];
    if (type == '0' || type == '\0') {
      members.push_back({until_zero(header.substr(0, 100)), archive.substr(at + kBlock, size)});
    }
    at += kBlock + (size + kBlock - 1) / kBlock * kBlock;
  }
  return members;
}

// {value: probability} as values and running sums; empty: no data.
struct Histogram {
  std::vector<std::int64_t> values;
  std::vector<double> sums;

  [[nodiscard]] bool empty() const { return values.empty(); }
  [[nodiscard]] std::int64_t draw(RandomStream& stream) const {
    const double at = uniform01(stream) * sums.back();
    const auto found = std::upper_bound(sums.begin(), sums.end(), at);
    return values[std::min(static_cast<std::size_t>(found - sums.begin()), values.size() - 1)];
  }
};

// A Python dict literal of numbers, and nothing else of Python.
std::optional<Histogram> parse_dict(std::string_view text) {
  const auto strip = [](std::string_view piece) {
    while (piece.starts_with(' ')) {
      piece.remove_prefix(1);
    }
    while (piece.ends_with(' ')) {
      piece.remove_suffix(1);
    }
    return piece;
  };
  text = strip(text);
  if (!text.starts_with('{') || !text.ends_with('}') || text.size() < 2) {
    return std::nullopt;
  }
  text = text.substr(1, text.size() - 2);
  Histogram histogram;
  double sum = 0;
  while (!strip(text).empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view item = text.substr(0, comma);
    const std::size_t colon = item.find(':');
    if (colon == std::string_view::npos) {
      return std::nullopt;
    }
    const auto value = parse_number(strip(item.substr(0, colon)));
    const auto probability = parse_number(strip(item.substr(colon + 1)));
    if (!value || !probability || *value < 0 || *value > static_cast<double>(kMaxTokens) ||
        *probability < 0) {
      return std::nullopt;
    }
    sum += *probability;
    histogram.values.push_back(std::llround(*value));
    histogram.sums.push_back(sum);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return histogram.empty() || sum > 0 ? std::optional(std::move(histogram)) : std::nullopt;
}

struct ArrivalWindow {
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  bool is_gamma = true;
  double shape = 0;
  double scale = 0;
};

struct LengthWindow {
  std::int64_t start_ns = 0;
  std::vector<Histogram> inputs;  // their sum is the prompt
  Histogram output;
};

struct Client {
  std::string id;
  std::vector<ArrivalWindow> arrivals;  // only those with traffic
  std::vector<LengthWindow> lengths;
  RandomStream gaps;
  RandomStream draws;
  std::size_t window = 0;
  std::int64_t next_ns = 0;
  bool started = false;
  std::int64_t sent = 0;
};

// One line; a window without traffic has shape 0. nullopt: not such a line.
std::optional<ArrivalWindow> parse_window(std::string_view line) {
  std::vector<std::string_view> cells;
  for (std::size_t at = 0; at <= line.size();) {
    const std::size_t comma = std::min(line.find(',', at), line.size());
    cells.push_back(line.substr(at, comma - at));
    at = comma + 1;
  }
  if (cells.size() != 6) {
    return std::nullopt;
  }
  ArrivalWindow window;
  window.start_ns = scaled_decimal(cells[0], 9).value_or(-1);
  // Far below the end of 64 bits, so that sums of times stay inside.
  if (window.start_ns < 0 || window.start_ns > INT64_MAX / 4) {
    return std::nullopt;
  }
  window.end_ns = window.start_ns + kDefaultWindowSeconds * kSecond.count();
  if (cells[3].empty()) {
    return window;
  }
  window.is_gamma = cells[3] == "Gamma";
  window.shape = parse_number(cells[4]).value_or(0);
  window.scale = parse_number(cells[5]).value_or(0);
  // A smaller scale would never let time pass.
  const bool usable =
      window.shape >= 1e-3 && window.shape <= 1e6 && window.scale >= 1e-9 && window.scale <= 1e9;
  return usable && (window.is_gamma || cells[3] == "Weibull") ? std::optional(window)
                                                              : std::nullopt;
}

std::vector<ArrivalWindow> parse_arrivals(const TarMember& member) {
  std::vector<ArrivalWindow> windows;
  std::int64_t last_start_ns = -1;
  LineReader lines(std::string(member.bytes), std::string(member.name));
  std::string_view line;
  while (lines.next(line)) {
    if (line.empty()) {
      continue;
    }
    const auto window = parse_window(line);
    if (!window || window->start_ns <= last_start_ns) {
      throw ConfigError(Problem{lines.name(), lines.place(), std::string(line),
                                "start,rate,cv,Gamma|Weibull|nothing,shape,scale in order of start",
                                ""});
    }
    last_start_ns = window->start_ns;
    if (!windows.empty()) {
      windows.back().end_ns = std::min(windows.back().end_ns, last_start_ns);
    }
    if (window->shape > 0) {
      windows.push_back(*window);
    }
  }
  return windows;
}

std::vector<LengthWindow> parse_lengths(const TarMember& member) {
  const std::string file(member.name);
  const Json json = parse_json(member.bytes, file);
  Problems problems;
  const JsonView view(json, file, "", problems);
  problems.raise_if_any();
  std::vector<LengthWindow> windows;
  for (const auto& [start, fields] : json.items()) {
    const auto start_ns = scaled_decimal(start, 9);
    if (!start_ns || *start_ns < 0 || !fields.is_object()) {
      view.complain(start, "a window's start in seconds, and an object of fields");
      continue;
    }
    LengthWindow window;
    window.start_ns = *start_ns;
    for (const auto& [name, literal] : fields.items()) {
      const bool is_input = name == "input_tokens" || name == "text_tokens" ||
                            name == "image_tokens" || name == "audio_tokens" ||
                            name == "video_tokens";
      if (!is_input && name != "output_tokens") {
        continue;
      }
      auto histogram =
          literal.is_string() ? parse_dict(literal.get_ref<const std::string&>()) : std::nullopt;
      if (!histogram) {
        problems.add({file, start + "." + name, literal.dump().substr(0, 60),
                      "a dict of tokens to probabilities, as text", ""});
      } else if (is_input && !histogram->empty()) {
        window.inputs.push_back(std::move(*histogram));
      } else if (!is_input) {
        window.output = std::move(*histogram);
      }
    }
    windows.push_back(std::move(window));
  }
  problems.raise_if_any();
  std::sort(windows.begin(), windows.end(),
            [](const LengthWindow& left, const LengthWindow& right) {
              return left.start_ns < right.start_ns;
            });
  return windows;
}

class ServegenStream : public RequestStream {
 public:
  ServegenStream(std::vector<Client> clients, ReadSummary summary, std::int64_t end_ns)
      : clients_(std::move(clients)), summary_(std::move(summary)), end_ns_(end_ns) {
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      advance(i);
    }
    if (!prepare()) {
      throw ConfigError(Problem{"servegen", "", "no traffic", "a window with requests", ""});
    }
    origin_ns_ = next_ns_;
    summary_.origin = format_seconds(Nanos{origin_ns_}) + " s";
  }

  std::optional<SimTime> next_arrival() override {
    return prepare() ? std::optional(SimTime{Nanos{next_ns_ - origin_ns_}}) : std::nullopt;
  }
  void take(TraceRequest& out) override {
    OOMCAST_CHECK(prepare(), "the stream is over");
    std::swap(out, next_);
    out.index = index_++;
    out.arrival = SimTime{Nanos{next_ns_ - origin_ns_}};
    ready_ = false;
  }
  bool at_end() override { return !prepare(); }
  [[nodiscard]] ReadSummary summary() const override { return summary_; }

 private:
  struct Due {
    std::int64_t at_ns;
    std::size_t client;
  };
  static bool later(const Due& left, const Due& right) {
    return left.at_ns != right.at_ns ? left.at_ns > right.at_ns : left.client > right.client;
  }

  void advance(std::size_t client);
  bool prepare();
  bool draw_lengths(Client& client);

  std::vector<Client> clients_;
  ReadSummary summary_;
  std::vector<Due> due_;  // heap, earliest first
  std::int64_t end_ns_;
  std::int64_t origin_ns_ = 0;
  std::int64_t next_ns_ = 0;
  std::int64_t index_ = 0;
  TraceRequest next_;
  bool ready_ = false;
};

// The client's next arrival, in this window or a later one.
void ServegenStream::advance(std::size_t number) {
  Client& client = clients_[number];
  while (client.window < client.arrivals.size()) {
    const ArrivalWindow& window = client.arrivals[client.window];
    if (!client.started) {
      client.next_ns = window.start_ns;
      client.started = true;
    }
    const double gap = window.is_gamma ? gamma(client.gaps, window.shape, window.scale)
                                       : weibull(client.gaps, window.shape, window.scale);
    // Longer than any window is as good as never.
    client.next_ns += static_cast<std::int64_t>(std::llround(std::min(gap, 1e6) * kNanosPerSecond));
    if (client.next_ns < window.end_ns) {
      if (client.next_ns < end_ns_) {
        due_.push_back({client.next_ns, number});
        std::push_heap(due_.begin(), due_.end(), later);
      }
      return;
    }
    ++client.window;
    client.started = false;
  }
}

bool ServegenStream::draw_lengths(Client& client) {
  const auto after = std::upper_bound(
      client.lengths.begin(), client.lengths.end(), client.next_ns,
      [](std::int64_t at, const LengthWindow& window) { return at < window.start_ns; });
  if (after == client.lengths.begin()) {
    return false;
  }
  const LengthWindow& window = *(after - 1);
  if (window.inputs.empty() || window.output.empty()) {
    return false;
  }
  std::int64_t input = 0;
  for (const Histogram& histogram : window.inputs) {
    input += histogram.draw(client.draws);
  }
  const std::int64_t output = window.output.draw(client.draws);
  next_ = TraceRequest{};
  next_.input = Tokens{std::max<std::int64_t>(input, 1)};
  next_.output = Tokens{std::max<std::int64_t>(output, 1)};
  if (input < 1 || output < 1) {
    ReadSummary::Reason& entry = summary_.changed["length 0 read as 1"];
    if (entry.count++ == 0) {
      entry.first = "client " + client.id;
    }
  }
  return true;
}

bool ServegenStream::prepare() {
  while (!ready_ && !due_.empty()) {
    std::pop_heap(due_.begin(), due_.end(), later);
    const Due due = due_.back();
    due_.pop_back();
    Client& client = clients_[due.client];
    ++summary_.read;
    ready_ = draw_lengths(client);
    if (ready_) {
      ++summary_.kept;
      next_ns_ = due.at_ns;
      next_.id = fmt::format("{}/{}", client.id, client.sent++);
    } else {
      ReadSummary::Reason& entry = summary_.dropped["no length distribution for the window"];
      if (entry.count++ == 0) {
        entry.first = "client " + client.id;
      }
    }
    advance(due.client);
  }
  return ready_;
}

// "…/chunk-17-trace.csv" -> "17"
std::optional<std::string> chunk_id(std::string_view name, std::string_view ending) {
  const std::size_t slash = name.rfind('/');
  name = slash == std::string_view::npos ? name : name.substr(slash + 1);
  constexpr std::string_view kStart = "chunk-";
  if (!name.starts_with(kStart) || !name.ends_with(ending) ||
      name.size() <= kStart.size() + ending.size()) {
    return std::nullopt;
  }
  return std::string(name.substr(kStart.size(), name.size() - kStart.size() - ending.size()));
}

}  // namespace

bool is_tar(std::string_view head) {
  return head.size() >= kTarHeaderBytes && head.substr(257, 5) == "ustar";
}

std::unique_ptr<RequestStream> open_servegen(LineReader& archive, const ServegenWindow& window,
                                             std::uint64_t seed) {
  const std::string bytes = archive.read_rest(kMostArchiveBytes);
  std::map<std::string, TarMember> traces;
  std::map<std::string, TarMember> datasets;
  for (const TarMember& member : tar_members(bytes, archive.name())) {
    if (auto id = chunk_id(member.name, "-trace.csv")) {
      traces.emplace(std::move(*id), member);
    } else if (auto data_id = chunk_id(member.name, "-dataset.json")) {
      datasets.emplace(std::move(*data_id), member);
    }
  }
  if (traces.empty()) {
    throw ConfigError(Problem{archive.name(), "", "", "files named chunk-ID-trace.csv inside", ""});
  }
  constexpr std::int64_t kNs = 1'000'000'000;
  const std::int64_t start_ns = window.start_seconds * kNs;
  const std::int64_t end_ns =
      window.duration_seconds == INT64_MAX ? INT64_MAX : start_ns + window.duration_seconds * kNs;
  ReadSummary summary;
  summary.format = kServegenName;
  summary.notes = {"drawn from distributions; input and output are independent",
                   "windows are not rescaled to their exact rate"};
  std::vector<Client> clients;
  for (const auto& [id, trace] : traces) {
    const auto dataset = datasets.find(id);
    if (dataset == datasets.end()) {
      summary.notes.push_back("client " + id + " has no length file and is left out");
      continue;
    }
    Client client{id, parse_arrivals(trace), parse_lengths(dataset->second),
                  random_stream(seed, "servegen.gaps." + id),
                  random_stream(seed, "servegen.lengths." + id)};
    std::erase_if(client.arrivals, [&](const ArrivalWindow& arrivals) {
      return arrivals.start_ns < start_ns || arrivals.start_ns >= end_ns;
    });
    clients.push_back(std::move(client));
  }
  return std::make_unique<ServegenStream>(std::move(clients), std::move(summary), end_ns);
}

}  // namespace oomcast::workloads::formats
