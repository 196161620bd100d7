// Products by panels of weights in 12 bits: by tiles where the CPU has them, else by dot products.
#pragma once

#include "common/common.h"

#if QUIRE_HAS_TILES
#include "linear/tile_panels.h"
#else
#include "linear/dot_panels.h"
#endif
