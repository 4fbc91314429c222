#include "sim/report/html.hpp"

namespace oomcast::report {
namespace {

// Without the reference to a source map that build tools leave in the last line.
std::string_view file_named(std::string_view name) {
  const auto& files = detail::compiled_in_files();
  const auto found = files.find(name);
  OOMCAST_CHECK(found != files.end(), "no page file {}", name);
  // "//# sourceMappingURL=" in a script, "/*# ..." in a style sheet.
  const std::size_t reference = found->second.rfind("# sourceMappingURL=");
  return reference == std::string_view::npos ? found->second
                                             : found->second.substr(0, reference - 2);
}

// A browser ends a script at "</script", wherever it stands. In JSON a < is always within a string.
void add_script_safe(std::string& out, std::string_view data) {
  std::size_t begin = 0;
  for (std::size_t at = data.find('<'); at != data.npos; at = data.find('<', begin)) {
    out += data.substr(begin, at - begin);
    out += "\\u003c";
    begin = at + 1;
  }
  out += data.substr(begin);
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char letter : text) {
    switch (letter) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += letter;
    }
  }
  return out;
}

std::string data_text(const OrderedJson& data) {
  return data.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string page(std::string_view title, std::string_view body, std::string_view script,
                 std::string_view data) {
  std::string out =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n"
      // Nothing is ever fetched, whatever the data says.
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n<title>";
  out += escape_html(title);
  out += "</title>\n<style>\n";
  for (const std::string_view name : {"dygraph.css", "page.css"}) {
    out += file_named(name);
    out += '\n';
  }
  out += "</style>\n</head>\n<body>\n";
  out += file_named(body);
  out += "\n<script type=\"application/json\" id=\"data\">";
  add_script_safe(out, data);
  out += "</script>\n";
  for (const std::string_view name :
       {std::string_view{"dygraph.js"}, std::string_view{"synchronizer.js"},
        std::string_view{"common.js"}, std::string_view{"charts.js"},
        std::string_view{"classes.js"}, std::string_view{"requests.js"}, script}) {
    out += "<script>\n";
    out += file_named(name);
    out += "\n</script>\n";
  }
  out += "</body>\n</html>\n";
  return out;
}

}  // namespace oomcast::report
