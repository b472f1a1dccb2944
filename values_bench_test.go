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

// agreeingVariable passes the store's address to the second process of BenchmarkAgree.
const agreeingVariable = "SYMMEM_TEST_AGREEING"

const (
	firstRank, secondRank = 0, 1 // in separate processes

	agreedName  = "batch size"
	agreedValue = 8
)

// openPair opens one of two ranks, which meet at the store.
func openPair(rankNumber int, store string) (*symmem.Runtime, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return symmem.Open(ctx, symmem.Options{
		Rank: rankNumber, Size: 2, Store: store, Backend: "host", Timeout: time.Minute,
	})
}

// runAgreeingRank calls Agree until the first rank closes, and returns the exit status.
func runAgreeingRank() int {
	rt, err := openPair(secondRank, os.Getenv(agreeingVariable))
	for err == nil {
		err = rt.World().Agree(context.Background(), agreedName, agreedValue)
	}

	var deadlock *symmem.DeadlockError
	hasFirstRankLeft := errors.As(err, &deadlock)
	if hasFirstRankLeft {
		err = rt.Close()
	}

	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	return 0
}

// BenchmarkAgree limits the median time per call if barsVariable is set. The mean would depend on
// the load of the machine.
func BenchmarkAgree(b *testing.B) {
	store := "unix:@symmem-test-" + rand.Text()
	// In the other process, TestMain calls runAgreeingRank.
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), agreeingVariable+"="+store)
	other.Stderr = os.Stderr
	if err := other.Start(); err != nil {
		b.Fatal(err)
	}

	rt, err := openPair(firstRank, store)
	if err != nil {
		b.Fatal(err)
	}

	const batchCalls, maxMedianNs = 200, 500
	var batchTimes []time.Duration
	b.ReportAllocs()
	begin := time.Now()
	for n := 1; b.Loop(); n++ {
		if err := rt.World().Agree(b.Context(), agreedName, agreedValue); err != nil {
			b.Fatal(err)
		}

		if n%batchCalls == 0 {
			batchTimes = append(batchTimes, time.Since(begin))
			begin = time.Now()
		}
	}

	slices.Sort(batchTimes)
	if len(batchTimes) > 0 {
		medianNs := float64(batchTimes[len(batchTimes)/2].Nanoseconds()) / batchCalls
		b.ReportMetric(medianNs, "median-ns/op")
		if os.Getenv(barsVariable) != "" && medianNs > maxMedianNs {
			b.Errorf("the median is %.0f ns, want at most %d", medianNs, maxMedianNs)
		}
	}

	if err := rt.Close(); err != nil {
		b.Error(err)
	}

	if err := other.Wait(); err != nil {
		b.Error(err)
	}
}
