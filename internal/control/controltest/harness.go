// Package controltest proves that planes keep the contract of package control.
//
// Run proves it with the ranks of one process, and with processes that it starts from the test's
// own program to kill them. A package that uses it calls Main from its TestMain, which runs a rank
// in such a process and never runs tests there.
package controltest

import (
	"context"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
)

// Member says which rank joins what.
type Member struct {
	// Store is shared by all ranks of the group, which are all ranks of the world.
	Store driver.Store
	// Group is what to join.
	Group driver.GroupConfig
	// Timeout bounds waits for ranks that do not come.
	Timeout time.Duration
	// Late says when to warn of ranks that are late.
	Late driver.Late
}

// Rank is the member's rank in the world.
func (m Member) Rank() int { return m.Group.Ranks[m.Group.Rank] }

// Join joins a group. Closing the plane gives back everything that was opened for it.
type Join func(ctx context.Context, m Member) (control.Plane, error)

// chapter is a part of the contract.
type chapter struct {
	name  string
	tests []contract
}

// contract is one sentence of the contract and its proof.
type contract struct {
	sentence string
	prove    func(t *testing.T, join Join)
}

// Run proves the whole contract.
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
