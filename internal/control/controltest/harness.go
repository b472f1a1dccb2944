// Package controltest tests that implementations of control.Plane satisfy its contract.
//
// Run tests the contract with ranks in one process and with ranks in several processes, some of
// which it kills. These processes run the test binary again and become ranks when the binary calls
// Main. A package that calls Run must therefore call Main at the start of its TestMain.
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
	// Timeout bounds how long a rank waits for other ranks.
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
