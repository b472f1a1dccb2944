// Command tally reads the output of go test -json. It prints the output of failed tests and the
// number of tests that passed and failed. It fails if a test failed.
//
//	go test -json ./... | go run ./internal/house/tally
package main

import (
	"fmt"
	"os"
)

func main() {
	failed, err := run(os.Stdin, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "tally:", err)
		os.Exit(2)
	}

	if failed {
		os.Exit(1)
	}
}
