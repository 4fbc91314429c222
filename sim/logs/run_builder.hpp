// Gathers what the lines of one engine start tell.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "sim/logs/engine_log.hpp"
#include "sim/logs/matcher.hpp"

namespace oomcast::logs {

class RunBuilder {
 public:
  RunBuilder(std::string stream, std::int64_t line);

  // Takes a matched line. `odd_numbers` counts captures that no such quantity can have.
  void take(const Match& match, std::string_view line, const std::string& rank, std::int64_t number,
            std::int64_t& odd_numbers);
  void set_text(Text which, std::string_view value, std::int64_t line, Again again);
  void set_engine(launch::Engine engine) { run_.engine = engine; }

  // Whether a first line of a start begins another one.
  [[nodiscard]] bool has_begun() const;
  [[nodiscard]] const EngineRun& run() const { return run_; }
  // The whole, with what follows from its readings.
  EngineRun finish();

 private:
  std::size_t rank_index(const std::string& label);
  void take_figure(const Capture& capture, std::string_view printed, std::size_t rank,
                   std::int64_t number, std::int64_t& odd_numbers);
  void store(Figure figure, Again again, const Reading& reading);
  void enter(const Row& row, std::size_t rank, std::int64_t number);
  void fail(const Row& row, std::string_view line, std::size_t rank, std::int64_t number);
  void narrow_versions(const Row& row);

  EngineRun run_;
  // Where each figure of each rank lies in the readings.
  std::map<std::pair<Figure, std::size_t>, std::size_t> places_;
  // Per rank, the phase that an open traceback tells.
  std::map<std::size_t, Phase> frames_;
  std::int64_t last_failed_line_ = 0;
  FailureKind last_failed_kind_ = FailureKind::kEngineError;
};

}  // namespace oomcast::logs
