package symmem_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"symmem"
)

// agreeingVariable marks the second process of BenchmarkAgree, and holds the address of the store.
const agreeingVariable = "SYMMEM_TEST_AGREEING"

func openPair(number int, store string) (*symmem.Runtime, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return symmem.Open(ctx, symmem.Options{
		Rank: number, Size: 2, Store: store, Backend: "host", Timeout: time.Minute,
	})
}

// runAgreeingRank calls Agree as the second rank until the first rank closes.
func runAgreeingRank() int {
	rt, err := openPair(1, os.Getenv(agreeingVariable))
	for err == nil {
		err = rt.World().Agree(context.Background(), "batch size", 8)
	}
	var deadlock *symmem.DeadlockError
	if errors.As(err, &deadlock) {
		err = rt.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// BenchmarkAgree compares a number between two processes. The median over batches must not exceed
// 500 ns per call. The mean is not limited, because it depends on the load of the machine.
func BenchmarkAgree(b *testing.B) {
	store := "unix:@symmem-test-" + rand.Text()
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), agreeingVariable+"="+store)
	other.Stderr = os.Stderr
	if err := other.Start(); err != nil {
		b.Fatal(err)
	}
	rt, err := openPair(0, store)
	if err != nil {
		b.Fatal(err)
	}
	const batch = 200
	var batches []time.Duration
	b.ReportAllocs()
	begin := time.Now()
	for n := 1; b.Loop(); n++ {
		if err := rt.World().Agree(b.Context(), "batch size", 8); err != nil {
			b.Fatal(err)
		}
		if n%batch == 0 {
			batches = append(batches, time.Since(begin))
			begin = time.Now()
		}
	}
	if slices.Sort(batches); len(batches) > 0 {
		median := float64(batches[len(batches)/2].Nanoseconds()) / batch
		b.ReportMetric(median, "median-ns/op")
		if os.Getenv(barsVariable) != "" && median > 500 {
			b.Errorf("the median is %.0f ns, want at most 500", median)
		}
	}
	if err := errors.Join(rt.Close(), other.Wait()); err != nil {
		b.Error(err)
	}
}
