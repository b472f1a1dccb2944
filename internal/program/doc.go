// Package program has the parts that the random programs of "symmem verify" and of package chaos
// share.
package program
