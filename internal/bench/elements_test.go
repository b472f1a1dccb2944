package bench

import (
	"testing"

	"symmem"
)

func TestElementsOfEveryTypeCountWhatIsWrong(t *testing.T) {
	runtimes, err := symmem.OpenLocal(t.Context(), 1, symmem.Options{Backend: "host"})
	if err != nil {
		t.Fatal(err)
	}
	rt := runtimes[0]
	defer rt.Close()
	pool, err := rt.NewPool(symmem.PoolOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, dataType := range []symmem.DataType{
		symmem.Float64, symmem.Float32, symmem.Float16, symmem.BFloat16,
		symmem.Int8, symmem.Uint8, symmem.Int32, symmem.Int64,
	} {
		t.Run(dataType.String(), func(t *testing.T) {
			b, err := pool.Alloc(4096)
			if err != nil {
				t.Fatal(err)
			}
			direct, err := elementsOf(b, dataType, nil)
			if err != nil {
				t.Fatal(err)
			}
			mirrored, err := elementsOf(b, dataType, rt.DefaultStream())
			if err != nil {
				t.Fatal(err)
			}
			// What one writes the other one reads.
			countWrong(t, direct, direct)
			countWrong(t, direct, mirrored)
			countWrong(t, mirrored, direct)
		})
	}
}

func countWrong(t *testing.T, writer, reader elements) {
	t.Helper()
	fill := func(at, n int64, value func(int64) int64) {
		if err := writer.fill(t.Context(), at, n, value); err != nil {
			t.Fatal(err)
		}
	}
	wrong := func(n int64, wanted func(int64) int64) int64 {
		count, err := reader.wrong(t.Context(), 0, n, wanted)
		if err != nil {
			t.Fatal(err)
		}
		return count
	}
	fill(0, 100, drawn)
	if n := wrong(100, drawn); n != 0 {
		t.Errorf("%d of 100 are wrong that are right", n)
	}
	fill(10, 3, func(int64) int64 { return 99 })
	if n := wrong(100, drawn); n != 3 {
		t.Errorf("%d are wrong, want 3", n)
	}
	if n := wrong(90, func(i int64) int64 { return drawn(i + 1) }); n < 45 {
		t.Errorf("of a shifted pattern only %d of 90 are wrong", n)
	}
	fill(0, 0, drawn)
}
