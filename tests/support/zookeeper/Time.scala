package org.apache.zookeeper.common

import java.nio.file.{Files, Path}

/** In place of the class of this name in ZooKeeper: the wall clock is off by what a file says, in seconds.
  *
  * The file is in the working directory, so each server has its own.
  */
object Time {
  private val clock = Path.of("clock")

  def currentElapsedTime(): Long = System.nanoTime() / 1000000

  def currentWallTime(): Long =
    System.currentTimeMillis() + (java.lang.Double.parseDouble(Files.readString(clock)) * 1000).toLong

  def elapsedTimeToDate(elapsed: Long): java.util.Date =
    new java.util.Date(currentWallTime() + elapsed - currentElapsedTime())
}
