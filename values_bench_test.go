package symmem_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"symmem"
)

// agreeingVariable is set for the other process of BenchmarkAgree, and holds the store.
const agreeingVariable = "SYMMEM_TEST_AGREEING"

// openPair opens a rank of a world of two.
func openPair(number int, store string) (*symmem.Runtime, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return symmem.Open(ctx, symmem.Options{
		Rank: number, Size: 2, Store: store, Backend: "host", Timeout: time.Minute,
	})
}

// beAgreeing is the main function of that process, which agrees until the other one leaves.
func beAgreeing() int {
	rt, err := openPair(1, os.Getenv(agreeingVariable))
	for err == nil {
		err = rt.World().Agree(context.Background(), "batch size", 8)
	}
	var stray *symmem.StrayError
	if errors.As(err, &stray) {
		err = rt.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// BenchmarkAgree compares one number of two processes. It is
// to take 500 ns at most where each has a processor of its own.
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
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		if err := rt.World().Agree(ctx, "batch size", 8); err != nil {
			b.Fatal(err)
		}
	}
	within(b, 500)
	b.StopTimer()
	if err := errors.Join(rt.Close(), other.Wait()); err != nil {
		b.Error(err)
	}
}
