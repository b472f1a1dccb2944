package reduce

import "testing"

// eachLevel runs a test at every instruction set that this processor has.
func eachLevel(t *testing.T, run func(t *testing.T)) {
	t.Helper()
	best := active
	t.Cleanup(func() { active = best })
	names := map[level]string{
		levelPortable: "portable", levelAVX2: "avx2", levelAVX512: "avx512",
	}
	for active = range best + 1 {
		t.Run(names[active], run)
	}
}
