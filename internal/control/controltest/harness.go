// Package controltest tests that planes satisfy the contract of package control.
//
// Run tests it with ranks in one process, and with processes started from the test binary that it
// kills. A package that uses it calls Main from its TestMain. In a started process Main runs a rank
// and never runs tests.
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
	// Store is shared by all ranks of the group, which are all ranks of the world.
	Store driver.Store
	// Group is the group to join.
	Group driver.GroupConfig
	// Timeout bounds waits for ranks that do not arrive.
	Timeout time.Duration
	// Late configures warnings of late ranks.
	Late driver.Late
}

// Rank returns the member's world rank.
func (m Member) Rank() int { return m.Group.Ranks[m.Group.Rank] }

// Join joins a group. Closing the plane releases everything that was opened for it.
type Join func(ctx context.Context, m Member) (control.Plane, error)

// chapter is a section of the contract.
type chapter struct {
	name  string
	tests []contract
}

// contract is one statement of the contract and the function that tests it.
type contract struct {
	sentence string
	prove    func(t *testing.T, join Join)
}

// Run tests the whole contract.
func Run(t *testing.T, join Join) {
	t.Helper()
	for _, c := range []chapter{
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
				t.Run(s.sentence, func(t *testing.T) { s.prove(t, join) })
			}
		})
	}
}
