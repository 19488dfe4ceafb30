// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/output_options.hpp"

#include <algorithm>

#include "launch/plan/error.hpp"

namespace accelerate::launch {
namespace {

void check_highest(std::string_view option, const std::string& given, int64_t highest, int64_t ranks) {
  if (highest < ranks) return;
  fail(ErrorKind::usage, "--{} is {}, but there is no local rank {}: a machine has {}, the highest is {}; leave {} out",
       option, given, highest, ranks, ranks - 1, highest);
}

}  // namespace

bool goes_to_log(const OutputOptions& options, int64_t local_rank, size_t stream) {
  return !options.log_dir.empty() && (options.tee.has(local_rank, stream) || options.redirects.has(local_rank, stream));
}

bool is_shown(const OutputOptions& options, int64_t local_rank, size_t stream) {
  const auto& ranks = options.local_ranks;
  if (ranks && std::find(ranks->begin(), ranks->end(), local_rank) == ranks->end()) return false;
  return !goes_to_log(options, local_rank, stream) || options.tee.has(local_rank, stream);
}

OutputOptions output_options(const LaunchOptions& given) {
  OutputOptions options{.log_dir = given.log_dir.value_or(""),
                        .labels = given.label.value_or(false),
                        .debug = given.settings.debug.value_or(false)};
  if ((given.tee || given.redirects) && !given.log_dir) {
    fail(ErrorKind::usage, "--{} is {}, but --log_dir is not set; set it to a folder for the files",
         given.tee ? "tee" : "redirects", given.tee ? *given.tee : *given.redirects);
  }
  options.tee = StreamChoice::parse(value_of(given, &LaunchOptions::tee)).value();
  if (given.redirects && !given.tee) options.tee = StreamChoice::none();
  options.redirects = StreamChoice::parse(value_of(given, &LaunchOptions::redirects)).value();
  if (given.local_ranks_filter) options.local_ranks = parse_rank_filter(*given.local_ranks_filter);
  return options;
}

void check_local_ranks(const LaunchOptions& options, int64_t ranks) {
  const auto highest = [](const std::string& streams) { return StreamChoice::parse(streams).value().highest_rank(); };
  if (options.tee) check_highest("tee", *options.tee, highest(*options.tee), ranks);
  if (options.redirects) check_highest("redirects", *options.redirects, highest(*options.redirects), ranks);
  if (options.local_ranks_filter) {
    const auto shown = parse_rank_filter(*options.local_ranks_filter).value();
    check_highest("local_ranks_filter", *options.local_ranks_filter, *std::max_element(shown.begin(), shown.end()),
                  ranks);
  }
}

}  // namespace accelerate::launch
