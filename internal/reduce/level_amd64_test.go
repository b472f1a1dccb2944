package reduce

// eachLevel calls run with every instruction set that this processor has.
func eachLevel(run func(name string)) {
	best := active
	defer func() { active = best }()
	names := [...]string{levelPortable: "portable", levelAVX2: "avx2", levelAVX512: "avx512"}
	for active = range best + 1 {
		run(names[active])
	}
}
