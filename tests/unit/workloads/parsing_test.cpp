#include <gtest/gtest.h>

#include "sim/core/error.hpp"
#include "tests/unit/workloads/trace_helpers.hpp"
#include "workloads/byte_source.hpp"
#include "workloads/flat_reader.hpp"
#include "workloads/record.hpp"

namespace oomcast::workloads {
namespace {

TEST(ScaledDecimal, IsExact) {
  EXPECT_EQ(scaled_decimal("12.5", 9), 12'500'000'000);
  EXPECT_EQ(scaled_decimal("0.000000001", 9), 1);
  EXPECT_EQ(scaled_decimal("0.0000000004", 9), 0);
  EXPECT_EQ(scaled_decimal("0.0000000005", 9), 1);
  // A double could not hold these nanoseconds of an epoch.
  EXPECT_EQ(scaled_decimal("1776748603.540974123", 9), 1'776'748'603'540'974'123);
  EXPECT_EQ(scaled_decimal("5e-05", 9), 50'000);
  EXPECT_EQ(scaled_decimal("1.5E+3", 0), 1500);
  EXPECT_EQ(scaled_decimal("-2", 3), -2000);
  EXPECT_EQ(scaled_decimal("3.", 1), 30);
  EXPECT_EQ(scaled_decimal(".5", 1), 5);
  EXPECT_EQ(scaled_decimal("0e400", 9), 0);
  EXPECT_EQ(scaled_decimal("0.12345678901234567890123", 3), 123);
}

TEST(ScaledDecimal, RefusesWhatIsNoNumberOrDoesNotFit) {
  for (const char* text :
       {"", ".", "-", "nan", "inf", "1e", "1e999", "1x", "1 2", "0x10", "1e400"}) {
    EXPECT_EQ(scaled_decimal(text, 9), std::nullopt) << text;
  }
  EXPECT_EQ(scaled_decimal("9223372036.854775807", 9), INT64_MAX);
  EXPECT_EQ(scaled_decimal("9223372036.854775808", 9), std::nullopt);
}

TEST(DateTime, AllSpellingsOfOneInstant) {
  const std::int64_t instant = 1'700'158'546'680'590'000;
  EXPECT_EQ(parse_date_time("2023-11-16 18:15:46.6805900"), instant);
  EXPECT_EQ(parse_date_time("2023-11-16T18:15:46.68059Z"), instant);
  EXPECT_EQ(parse_date_time("2023-11-16 18:15:46.680590+00:00"), instant);
  EXPECT_EQ(parse_date_time("2023-11-16 20:15:46.680590+02:00"), instant);
  EXPECT_EQ(parse_date_time("2023-11-16 13:45:46.680590-04:30"), instant);
  EXPECT_EQ(parse_date_time("1970-01-01 00:00:00"), 0);
  EXPECT_EQ(parse_date_time("2024-02-29 00:00:00.000000001").value_or(0) -
                parse_date_time("2024-02-28 23:59:59").value_or(0),
            1'000'000'001);
}

TEST(DateTime, RefusesOthers) {
  for (const char* text :
       {"", "2023-11-16", "2023-13-16 18:15:46", "2023-02-29 18:15:46", "2023-11-16 24:15:46",
        "2023-11-16 18:60:46", "2023-11-16 18:15:46.", "2023-11-16 18:15:46.1234567890",
        "2023-11-16 18:15:46 CET", "2023-11-16 18:15:46+0200", "16/11/2023 18:15:46",
        "3023-11-16 18:15:46", "133457337466805900"}) {
    EXPECT_EQ(parse_date_time(text), std::nullopt) << text;
  }
}

std::vector<std::string> lines_of(const std::string& text) {
  LineReader reader(text, "text");
  std::vector<std::string> out;
  std::string_view line;
  while (reader.next(line)) {
    out.emplace_back(line);
  }
  return out;
}

TEST(LineReader, LineEndsAndByteOrderMark) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(lines_of("\xef\xbb\xbf"
                     "a\r\nb\n\nc"),
            (Lines{"a", "b", "", "c"}));
  EXPECT_EQ(lines_of("a\n"), (Lines{"a"}));
  EXPECT_EQ(lines_of(""), (Lines{}));
  const std::string longer(3'000'000, 'x');
  EXPECT_EQ(lines_of("a\n" + longer + "\nb"), (Lines{"a", longer, "b"}));
}

TEST(LineReader, UnreadGivesTheLineAgain) {
  LineReader reader("a\nb\n", "text");
  std::string_view line;
  reader.next(line);
  reader.unread();
  reader.next(line);
  EXPECT_EQ(line, "a");
  EXPECT_EQ(reader.line_number(), 1);
  reader.next(line);
  EXPECT_EQ(line, "b");
}

std::vector<std::string> cells_of(const std::string& text, const std::vector<std::string>& names) {
  auto source = open_csv(std::make_unique<LineReader>(text, "text"));
  std::vector<int> wanted;
  wanted.reserve(names.size());
  for (const std::string& name : names) {
    wanted.push_back(source->want(name));
  }
  std::vector<std::string> out;
  while (source->next()) {
    for (const int field : wanted) {
      out.emplace_back(source->field(field).value_or("-"));
    }
  }
  return out;
}

TEST(Csv, QuotesSeparatorsAndEmptyCells) {
  using Cells = std::vector<std::string>;
  EXPECT_EQ(cells_of("a,b,c\n1,\"x,y\",3\n4,,\" \"\n", {"c", "b"}), (Cells{"3", "x,y", "-", "-"}));
  EXPECT_EQ(cells_of("a;b\n1;2\n", {"b"}), (Cells{"2"}));
  EXPECT_EQ(cells_of("a\tb\n1\t2\n", {"b"}), (Cells{"2"}));
  EXPECT_EQ(cells_of("a,b\n\"say \"\"hi\"\"\",2\n", {"a"}), (Cells{"say \"hi\""}));
  EXPECT_EQ(cells_of("a,b\n\"two\nlines\",2\n3,4\n", {"a", "b"}),
            (Cells{"two\nlines", "2", "3", "4"}));
  EXPECT_EQ(cells_of("a,b\n1,2\n", {"absent"}), (Cells{"-"}));
  EXPECT_THROW(cells_of("a,b\n1\n", {"a"}), ConfigError);
  EXPECT_THROW(cells_of("a,b\n1,2,3\n", {"a"}), ConfigError);
  EXPECT_THROW(cells_of("a,b\n\"1,2\n", {"a"}), ConfigError);
}

TEST(JsonLines, FieldsListsAndNesting) {
  auto source = open_json_lines(std::make_unique<LineReader>(
      R"({"n":5,"f":1.25,"s":"t","b":true,"z":null,"l":[1,2],"m":[1,"x"],"o":{"n":9,"l":[7]},"d":[[1]]})",
      "text"));
  const auto want = [&](const char* name) { return source->want(name); };
  const int n = want("n");
  const int f = want("f");
  const int s = want("s");
  const int b = want("b");
  const int z = want("z");
  const int l = want("l");
  const int m = want("m");
  const int o = want("o");
  const int d = want("d");
  const int absent = want("absent");
  ASSERT_TRUE(source->next());
  EXPECT_EQ(source->field(n), "5");
  EXPECT_EQ(source->field(f), "1.25");
  EXPECT_EQ(source->field(s), "t");
  EXPECT_EQ(source->field(b), "true");
  for (const int none : {z, l, m, o, d, absent}) {
    EXPECT_EQ(source->field(none), std::nullopt) << none;
  }
  ASSERT_NE(source->list(l), nullptr);
  EXPECT_EQ((*source->list(l))[0].ids, 2);
  EXPECT_EQ(source->list(l)->run(0), (IdRun{1, 2}));
  for (const int none : {n, m, o, d, absent}) {
    EXPECT_EQ(source->list(none), nullptr) << none;
  }
  EXPECT_FALSE(source->next());
}

// Fields of one line, "-" where there is none, and the lengths of its lists.
std::vector<std::string> fields_of(const std::string& line) {
  auto source = open_json_lines(std::make_unique<LineReader>(line, "text"));
  std::vector<int> wanted;
  for (const char* name : {"a", "b", "c"}) {
    wanted.push_back(source->want(name));
  }
  std::vector<std::string> out;
  source->next();
  for (const int field : wanted) {
    out.emplace_back(source->field(field).value_or("-"));
    const IdLists* list = source->list(field);
    out.emplace_back(list == nullptr ? "-" : std::to_string((*list)[0].ids));
  }
  return out;
}

// A member that holds an object makes the parser read a line, which is else read at once.
TEST(JsonLines, PlainLinesReadAsTheParserReadsThem) {
  for (const std::string members :
       {R"("a":1,"b":2.50,"c":"x y")", R"( "a" : 0 ,	"b" : "" , "c" : null )",
        R"("a":true,"b":false,"a":7)", R"("a":[],"b":[ ],"d":5,"e":"z")",
        R"("a":-3,"b":1e5,"c":-0)", R"("a":12345678901234567890123,"b":0.1234567890123456789012)",
        R"("a":"\u0041\n","b":"\"","c":"ä")", R"("a":[1,2],"b":{"a":5},"c":"t")"}) {
    EXPECT_EQ(fields_of("{" + members + "}"), fields_of("{" + members + R"(,"o":{}})")) << members;
  }
  EXPECT_EQ(fields_of("{}"), fields_of(R"({"o":{}})"));
  for (const char* bad :
       {R"({"a":1)", R"({"a":1}x)", R"({"a":01})", R"({"a":1.})", R"({"a":.5})", R"({"a":tru})",
        R"({"a" 1})", R"({"a":1,})", R"({,"a":1})", R"({"a":1 "b":2})", R"({a:1})", R"({"a":"x})",
        R"({"a":nullx})", R"({"a":[1})", R"({"a":+1})", R"({"a":})", R"([1])"}) {
    EXPECT_THROW(fields_of(bad), ConfigError) << bad;
  }
}

}  // namespace
}  // namespace oomcast::workloads
