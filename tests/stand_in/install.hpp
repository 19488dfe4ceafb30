// SPDX-License-Identifier: Apache-2.0
// The steps of install().
#pragma once

namespace stand_in {

void install_guard();
void install_hooks();
void install_backend();
void install_graphs();

}  // namespace stand_in
