// Package controltest tests that planes satisfy the contract of package control.
//
// Run tests the contract in one process and in several processes, some of which it kills. A package
// that calls Run must call Main at the start of its TestMain, because the processes that Run starts
// run the test binary again and become ranks in Main.
package controltest

import (
	"context"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// Member describes how one rank joins a group.
type Member struct {
	// Store is shared by all ranks of the world, which are all in the group.
	Store driver.Store
	Group driver.GroupConfig
	// Timeout bounds waits for ranks that do not arrive.
	Timeout time.Duration
	Late    driver.Late
}

// Rank returns the member's world rank.
func (m Member) Rank() int { return m.Group.Ranks[m.Group.Rank] }

// Join joins a group. Closing the plane must release everything that Join opened.
type Join func(ctx context.Context, m Member) (control.Plane, error)

type section struct {
	name  string
	tests []contract
}

// contract is one statement of the contract and the function that tests it.
type contract struct {
	sentence string
	test     func(t *testing.T, join Join)
}

// Run tests the whole contract.
func Run(t *testing.T, join Join) {
	t.Helper()
	for _, c := range []section{
		{"exchange", exchangeContracts},
		{"values", valueContracts},
		{"compare", compareContracts},
		{"await", awaitContracts},
		{"missing", missingContracts},
		{"fault", faultContracts},
		{"closing", closingContracts},
		{"lost", lostContracts},
		{"verdict", verdictContracts},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, s := range c.tests {
				t.Run(s.sentence, func(t *testing.T) { s.test(t, join) })
			}
		})
	}
}
