// Command tally reads what go test -json writes, shows the output of what failed, and ends with one
// line: how many tests passed and how many failed. It fails if any did.
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
