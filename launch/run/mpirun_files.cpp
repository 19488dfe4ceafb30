// SPDX-License-Identifier: Apache-2.0
#include "launch/run/mpirun_files.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "accelerate/env/parse.hpp"
#include "launch/pmix/private_folder.hpp"

namespace accelerate::launch {

void remove_files_of_mpirun(pid_t mpirun, const env::Variables& variables) {
  namespace fs = std::filesystem;
  std::error_code failed;
  const std::string end = fmt::format(".{}", geteuid());
  const fs::path temporary = env::find(variables, "TMPDIR").value_or("/tmp");
  for (fs::directory_iterator each(temporary, failed), last; !failed && each != last; each.increment(failed)) {
    const std::string name = each->path().filename();
    if (!name.starts_with("ompi.") || !name.ends_with(end)) continue;
    std::error_code ignored;
    const fs::path session = each->path() / fmt::format("pid.{}", mpirun);
    if (fs::exists(session, ignored)) remove_folder(session);
    fs::remove(each->path(), ignored);  // removes the parent if it is empty
  }
}

}  // namespace accelerate::launch
