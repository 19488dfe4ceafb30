// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/output_options.hpp"

#include <doctest/doctest.h>

#include <string>

using accelerate::launch::check_local_ranks;
using accelerate::launch::goes_to_log;
using accelerate::launch::is_shown;
using accelerate::launch::LaunchError;
using accelerate::launch::LaunchOptions;
using accelerate::launch::output_options;
using accelerate::launch::parse_rank_filter;
using accelerate::launch::StreamChoice;

namespace {

/// Returns "LS L-": L if logged, S if shown, for stdout and stderr of a rank.
std::string ways(const LaunchOptions& given, int64_t rank) {
  const auto options = output_options(given);
  std::string text;
  for (size_t stream = 0; stream < 2; ++stream) {
    text += stream == 0 ? "" : " ";
    text += goes_to_log(options, rank, stream) ? "L" : "-";
    text += is_shown(options, rank, stream) ? "S" : "-";
  }
  return text;
}

}  // namespace

TEST_CASE("streams are selected as by torchrun's options") {
  const auto has = [](const char* text, int64_t rank) {
    const auto choice = StreamChoice::parse(text);
    REQUIRE(choice);
    return 2 * int{choice->has(rank, 1)} + int{choice->has(rank, 0)};
  };
  for (int streams = 0; streams < 4; ++streams) CHECK(has(std::to_string(streams).c_str(), 7) == streams);
  CHECK(has("0:3,1:0,2:1", 0) == 3);
  CHECK(has("0:3,1:0,2:1", 1) == 0);
  CHECK(has("0:3,1:0,2:1", 2) == 1);
  CHECK(has("0:3,1:0,2:1", 3) == 0);
  for (const char* wrong : {"", "4", "-1", "all", "0:", ":3", "0:3,", "0:4", "-1:3", "0:3 1:0", "3,1", "0:3,0:1"}) {
    CAPTURE(wrong);
    CHECK_FALSE(StreamChoice::parse(wrong));
  }
}

TEST_CASE("a list of ranks is numbers") {
  CHECK(parse_rank_filter("0,12") == std::vector<int64_t>{0, 12});
  for (const char* wrong : {"", ",", "0,", "a", "-1", "0-3"}) {
    CAPTURE(wrong);
    CHECK_FALSE(parse_rank_filter(wrong));
  }
}

TEST_CASE("without a folder all output is printed; with one it is also in the files") {
  CHECK(ways({}, 0) == "-S -S");
  CHECK(ways({.log_dir = "d"}, 0) == "LS LS");
}

TEST_CASE("output that is neither teed nor redirected is printed, as under torchrun") {
  CHECK(ways({.log_dir = "d", .tee = "1"}, 0) == "LS -S");
  CHECK(ways({.log_dir = "d", .redirects = "3"}, 0) == "L- L-");
  CHECK(ways({.log_dir = "d", .redirects = "2"}, 0) == "-S L-");
  CHECK(ways({.log_dir = "d", .tee = "1", .redirects = "3"}, 0) == "LS L-");
  CHECK(ways({.log_dir = "d", .tee = "0:3,1:0"}, 1) == "-S -S");
}

TEST_CASE("output of ranks outside the filter is in their files only") {
  CHECK(ways({.log_dir = "d", .local_ranks_filter = "0,2"}, 1) == "L- L-");
  CHECK(ways({.log_dir = "d", .local_ranks_filter = "0,2"}, 2) == "LS LS");
  CHECK(ways({.local_ranks_filter = "0"}, 1) == "-- --");
}

TEST_CASE("files without a folder are refused") {
  CHECK_THROWS_WITH_AS(output_options({.tee = "3"}),
                       "accelerate_launch: --tee is 3, but --log_dir is not set; set it to a folder for the files",
                       LaunchError);
  CHECK_THROWS_WITH_AS(
      output_options({.redirects = "0:1"}),
      "accelerate_launch: --redirects is 0:1, but --log_dir is not set; set it to a folder for the files", LaunchError);
}

TEST_CASE("a local rank that no machine has is refused with the existing ones") {
  CHECK_NOTHROW(check_local_ranks({.tee = "0:3,1:1", .redirects = "1:2", .local_ranks_filter = "0,1"}, 2));
  CHECK_NOTHROW(check_local_ranks({.tee = "3"}, 1));
  CHECK_THROWS_WITH_AS(check_local_ranks({.local_ranks_filter = "9,0"}, 2),
                       "accelerate_launch: --local_ranks_filter is 9,0, but there is no local rank 9: a machine has 2, "
                       "the highest is 1; "
                       "leave 9 out",
                       LaunchError);
  CHECK_THROWS_WITH_AS(
      check_local_ranks({.tee = "5:3"}, 2),
      "accelerate_launch: --tee is 5:3, but there is no local rank 5: a machine has 2, the highest is 1; leave 5 out",
      LaunchError);
  CHECK_THROWS_WITH_AS(check_local_ranks({.redirects = "0:3,1:1"}, 1),
                       "accelerate_launch: --redirects is 0:3,1:1, but there is no local rank 1: a machine has 1, the "
                       "highest is 0; leave 1 out",
                       LaunchError);
}
