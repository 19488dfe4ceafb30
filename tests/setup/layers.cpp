// SPDX-License-Identifier: Apache-2.0
#include "tests/setup/layers.hpp"

#include <algorithm>
#include <fstream>
#include <regex>

#include "accelerate/env/backends.hpp"

namespace layers {
namespace fs = std::filesystem;
namespace {

Names operator+(Names left, const Names& right) {
  left.insert(right.begin(), right.end());
  return left;
}

// Plain C++: LibTorch headers must not be included.
bool is_plain(const std::string& place) {
  static const Names components{"archive", "base", "env", "launch", "tracking"};
  return components.contains(place) || place.starts_with("launch/");
}

// Folders that are checked by subfolder; files directly in them are their interface.
const Names with_wings{"comm", "data", "gradient", "launch", "tracking"};

bool is_libtorch(const std::string& header) {
  static const std::regex folders("(torch|ATen|c10|caffe2)/.*");
  return std::regex_match(header, folders);
}

std::string check(const std::string& path, const std::string& header) {
  const auto from = room_of(path);
  const auto row = table().find(from);
  if (row == table().end()) return path + ": the room '" + from + "' is not in the table of layers";
  if (is_libtorch(header)) {
    return is_plain(from) ? path + ": " + from + " may not include LibTorch (" + header + ")" : "";
  }
  const auto to = room_of(header);
  if (to.empty() || to == from || row->second.contains(to)) return "";
  return path + ": " + from + " may not include " + to + " (" + header + ")";
}

void check_file(const fs::path& repository, const fs::path& file, std::vector<std::string>& found) {
  static const std::regex include(R"(^\s*#\s*include\s*[<"]([^>"]+)[>"].*)");
  std::ifstream in(file);
  std::smatch match;
  for (std::string line; std::getline(in, line);) {
    if (!std::regex_match(line, match, include)) continue;
    auto problem = check(fs::relative(file, repository).generic_string(), match[1]);
    if (!problem.empty()) found.push_back(std::move(problem));
  }
}

}  // namespace

const std::map<std::string, Names>& table() {
  static const auto made = [] {
    const Names ground{"archive", "base", "env"};
    const Names doors = ground + Names{"comm", "device"};
    const Names values = doors + Names{"state", "precision", "tree", "units"};
    const Names components{"data", "gradient", "optim", "pipeline", "sharding", "checkpoint",       "tracking",
                           "nn",   "profile",  "job",   "deferred", "offload",  "context_parallel", "tensor_parallel"};
    const Names data_wings{"data/sources", "data/combinators", "data/transforms"};
    std::map<std::string, Names> rows{
        {"base", {}},
        {"archive", {"base"}},
        {"env", {"base"}},
        {"comm", ground + Names{"comm/core", "comm/operations", "comm/rendezvous", "comm/threads"}},
        {"comm/core", ground + Names{"device"}},
        {"comm/operations", ground + Names{"comm/core"}},
        {"comm/rendezvous", ground + Names{"comm/core"}},
        {"comm/mpi", ground + Names{"comm/core", "comm/rendezvous"}},
        {"comm/threads", ground + Names{"comm/core"}},
        {"device", ground},
        {"launch", ground + Names{"launch/plan", "launch/run", "launch/pmix", "launch/runners"}},
        {"launch/plan", ground},
        {"launch/pmix", ground + Names{"launch/plan"}},
        {"launch/run", ground + Names{"launch/plan", "launch/pmix"}},
        {"launch/rendezvous", ground + Names{"launch/plan", "launch/run"}},
        {"launch/runners", ground + Names{"launch/plan", "launch/pmix", "launch/run", "launch/rendezvous"}},
        {"launch/commands", ground + Names{"launch", "launch/plan", "launch/pmix", "launch/run", "tracking"}},
        {"launch/programs", ground + Names{"launch", "launch/commands", "launch/plan", "launch/runners"}},
        {"state", doors},
        {"precision", doors},
        {"tree", doors},
        {"units", ground + Names{"device"}},
        {"prepared", values + components},
        {"gradient/hooks", values + Names{"gradient"}},
        {"facade",
         values + components + data_wings + Names{"gradient/hooks", "prepared", "tracking/tensors", "launch"}},
        {"trainer", {"base", "facade"}},
        {"selftest", {"base", "facade"}}};
    for (const auto& room : components) rows[room] = values;
    for (const auto& backend : accelerate::env::backends()) {
      rows.try_emplace("comm/" + backend.name, ground + Names{"comm/core", "comm/rendezvous"});
    }
    rows["tensor_parallel"] = values + Names{"gradient", "nn"};
    // data only needs two integers about other ranks.
    rows["data"].erase("comm");
    for (const auto& wing : data_wings) rows[wing] = rows["data"] + Names{"data"};
    rows["deferred"].erase("comm");
    rows["offload"] = values + Names{"checkpoint", "deferred"};
    rows["optim"].erase("comm");
    rows["tracking"] = ground;
    rows["tracking/tensors"] = ground + Names{"tracking"};
    return rows;
  }();
  return made;
}

std::string room_of(const std::string& path) {
  auto next_folder = [rest = path]() mutable {  // returns "" if only the file name is left
    const auto slash = rest.find('/');
    if (slash == std::string::npos) return std::string();
    const auto name = rest.substr(0, slash);
    rest = rest.substr(slash + 1);
    return name;
  };
  const auto top = next_folder();
  if (top != "launch" && top != "accelerate") return "";
  const auto room = top == "launch" ? top : next_folder();
  if (room.empty()) return "facade";
  const auto wing = with_wings.contains(room) ? next_folder() : "";
  return wing.empty() ? room : room + "/" + wing;
}

std::vector<std::string> violations(const fs::path& repository) {
  std::vector<std::string> found;
  for (const auto* top : {"accelerate", "launch"}) {
    for (const auto& entry : fs::recursive_directory_iterator(repository / top)) {
      const auto extension = entry.path().extension();
      if (extension == ".hpp" || extension == ".cpp") check_file(repository, entry.path(), found);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace layers
