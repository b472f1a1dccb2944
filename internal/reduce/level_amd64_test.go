package reduce

// forEachLevel calls run once for every level that this processor supports, with that level active.
func forEachLevel(run func(name string)) {
	best := activeLevel
	defer func() { activeLevel = best }()
	names := [...]string{levelPortable: "portable", levelAVX2: "avx2", levelAVX512: "avx512"}
	for activeLevel = range best + 1 {
		run(names[activeLevel])
	}
}
