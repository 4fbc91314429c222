#include "sim/engines/version_rows.hpp"

#include <optional>

namespace oomcast {

const Json* VersionRows::row_of(const Json* rows, const std::string& key) const {
  const Json* found = nullptr;
  if (rows != nullptr && rows->is_array()) {
    for (const Json& row : *rows) {
      const auto since = row.is_object() && row.contains("since") && row["since"].is_string()
                             ? parse_version(row["since"].get<std::string>())
                             : std::nullopt;
      if (!since || !row.contains("value")) {
        problems_.add(
            {source_, key, row.dump().substr(0, 80), "rows with `since` and `value`", ""});
        return nullptr;
      }
      // The first row also stands for older versions, which run the same engine core.
      if (*since <= version_ || found == nullptr) {
        found = &row;
      }
    }
  }
  if (found == nullptr) {
    problems_.add({source_, key, to_string(version_), "a row for this version", ""});
  }
  return found;
}

const Json* VersionRows::rule(const std::string& key) const {
  const auto section = file_.object("rules");
  return row_of(section ? section->find(key) : nullptr, "rules." + key);
}

bool VersionRows::boolean(const std::string& key) const {
  return typed<bool>(key, &Json::is_boolean, "true or false");
}

double VersionRows::number(const std::string& key) const {
  return typed<double>(key, &Json::is_number, "a number");
}

std::int64_t VersionRows::integer(const std::string& key) const {
  return typed<std::int64_t>(key, &Json::is_number_integer, "an integer");
}

Json VersionRows::list(const std::string& key) const {
  return typed<Json>(key, &Json::is_array, "a list");
}

std::vector<std::string> VersionRows::texts(const std::string& key) const {
  std::vector<std::string> texts;
  for (const Json& item : list(key)) {
    if (item.is_string()) {
      texts.push_back(item.get<std::string>());
    } else {
      problems_.add({source_, "rules." + key, item.dump(), "a text", ""});
    }
  }
  return texts;
}

Version VersionRows::version(const std::string& key) const {
  const Json* row = rule(key);
  const auto value = row != nullptr && row->at("value").is_string()
                         ? parse_version(row->at("value").get<std::string>())
                         : std::nullopt;
  if (row != nullptr && !value) {
    problems_.add({source_, "rules." + key, row->at("value").dump(), "a version", ""});
  }
  return value.value_or(Version{});
}

std::int64_t VersionRows::measured(const std::string& key,
                                   std::vector<std::string>& provenance) const {
  const auto section = file_.object("measured");
  const auto entry = section ? section->object(key) : std::nullopt;
  if (!entry) {
    problems_.add({source_, "measured." + key, "nothing", "a measured value with rows", ""});
    return 0;
  }
  const Json* row = row_of(entry->find("rows"), "measured." + key);
  if (row == nullptr || !row->at("value").is_number_integer()) {
    problems_.add({source_, "measured." + key, "", "an integer `value`", ""});
    return 0;
  }
  const auto value = row->at("value").get<std::int64_t>();
  std::string spread;
  if (const auto mib = entry->number("uncertainty_mib")) {
    spread = fmt::format(" +-{} MiB", *mib);
  } else if (const auto percent = entry->number("uncertainty_percent")) {
    spread = fmt::format(" +-{} %", *percent);
  }
  provenance.push_back(fmt::format("{} = {}{}: {} [{}]", key, value, spread,
                                   entry->text("about").value_or(""),
                                   entry->text("source").value_or("")));
  return value;
}

double VersionRows::step_time(const std::string& key) const {
  const auto section = file_.object("step_time");
  const auto value = section ? section->number(key) : std::nullopt;
  if (!value || *value < 0) {
    problems_.add({source_, "step_time." + key, "", "a number of microseconds", ""});
    return 0;
  }
  return *value * 1e-6;
}

}  // namespace oomcast
