// Package program contains code that the random programs of "symmem verify" and of package chaos
// share.
package program
