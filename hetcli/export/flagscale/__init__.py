"""FlagScale: heterogeneous meshes, as its release 0.9 reads them. Experimental."""
