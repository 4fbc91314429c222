// Any bytes as the three files of a run: read, or refused with ConfigError; what was read becomes a
// page, a trace and tables.
#include <cstdint>
#include <string>

#include "sim/core/atomic_output.hpp"
#include "sim/core/error.hpp"
#include "sim/report/finished_run.hpp"
#include "sim/report/perfetto.hpp"
#include "sim/report/report_page.hpp"
#include "sim/report/tables.hpp"

namespace {

// Texts are cut apart at NUL bytes, which none of them may hold.
oomcast::report::RunTexts cut(const std::string& bytes) {
  oomcast::report::RunTexts texts;
  const std::size_t first = bytes.find('\0');
  texts.record = bytes.substr(0, first);
  if (first != std::string::npos) {
    const std::size_t second = bytes.find('\0', first + 1);
    texts.timeline = bytes.substr(first + 1, second - first - 1);
    texts.requests = second == std::string::npos ? "" : bytes.substr(second + 1);
  }
  return texts;
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  try {
    const oomcast::report::FinishedRun run = oomcast::report::read_run(cut(bytes));
    const std::string page = oomcast::report::report_page(run);
    OOMCAST_CHECK(page.ends_with("</html>\n"), "a page that does not end");
    OOMCAST_CHECK(!oomcast::report::comparison_page(run, run).empty(), "no page of two");
    oomcast::CheckedFile nowhere("/dev/null");
    oomcast::report::write_perfetto(run, nowhere);
    OOMCAST_CHECK(!oomcast::report::startup_csv(run).empty(), "no startup");
    OOMCAST_CHECK(!oomcast::report::peaks_csv(run).empty(), "no peaks");
  } catch (const oomcast::ConfigError& error) {
    OOMCAST_CHECK(!error.problems().empty(), "an error without a problem");
  }
  return 0;
}
