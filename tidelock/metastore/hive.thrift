// The calls of a Hive metastore that Spark makes, with the fields that it reads or sends. Names and numbers are
// those of Hive 2.3, the client of every Spark from 3.0 on; readers skip fields that are not listed here.

exception MetaException { 1: string message }
exception NoSuchObjectException { 1: string message }
exception UnknownDBException { 1: string message }
exception InvalidOperationException { 1: string message }
exception InvalidObjectException { 1: string message }
exception AlreadyExistsException { 1: string message }

struct FieldSchema { 1: string name, 2: string type, 3: string comment }
struct Order { 1: string col, 2: i32 order }
struct SerDeInfo { 1: string name, 2: string serializationLib, 3: map<string, string> parameters }
struct StorageDescriptor {
  1: list<FieldSchema> cols
  2: string location
  3: string inputFormat
  4: string outputFormat
  5: bool compressed
  6: i32 numBuckets
  7: SerDeInfo serdeInfo
  8: list<string> bucketCols
  9: list<Order> sortCols
  10: map<string, string> parameters
  12: bool storedAsSubDirectories
}
struct Database {
  1: string name
  2: string description
  3: string locationUri
  4: map<string, string> parameters
  6: string ownerName
  7: i32 ownerType
}
struct Table {
  1: string tableName
  2: string dbName
  3: string owner
  4: i32 createTime
  5: i32 lastAccessTime
  6: i32 retention
  7: StorageDescriptor sd
  8: list<FieldSchema> partitionKeys
  9: map<string, string> parameters
  10: string viewOriginalText
  11: string viewExpandedText
  12: string tableType
  14: bool temporary
}
struct Partition {
  1: list<string> values
  2: string dbName
  3: string tableName
  4: i32 createTime
  5: i32 lastAccessTime
  6: StorageDescriptor sd
  7: map<string, string> parameters
}
struct TableMeta { 1: string dbName, 2: string tableName, 3: string tableType, 4: string comments }
struct Function { 1: string functionName, 2: string dbName, 3: string className }
struct EnvironmentContext { 1: map<string, string> properties }

struct ClientCapabilities { 1: list<i32> values }
struct GetTableRequest { 1: string dbName, 2: string tblName, 3: ClientCapabilities capabilities }
struct GetTableResult { 1: Table table }
struct GetTablesRequest { 1: string dbName, 2: list<string> tblNames, 3: ClientCapabilities capabilities }
struct GetTablesResult { 1: list<Table> tables }
struct PartitionsByExprRequest {
  1: string dbName
  2: string tblName
  3: binary expr
  4: string defaultPartitionName
  5: i16 maxParts
}
struct PartitionsByExprResult { 1: list<Partition> partitions, 2: bool hasUnknownPartitions }
struct AddPartitionsRequest {
  1: string dbName
  2: string tblName
  3: list<Partition> parts
  4: bool ifNotExists
  5: bool needResult
}
struct AddPartitionsResult { 1: list<Partition> partitions }
struct GetAllFunctionsResponse { 1: list<Function> functions }

service ThriftHiveMetastore {
  list<string> set_ugi(1: string user_name, 2: list<string> group_names) throws (1: MetaException o1)
  string get_config_value(1: string name, 2: string defaultValue) throws (1: MetaException o1)
  oneway void shutdown()

  list<string> get_all_databases() throws (1: MetaException o1)
  list<string> get_databases(1: string pattern) throws (1: MetaException o1)
  Database get_database(1: string name) throws (1: NoSuchObjectException o1, 2: MetaException o2)

  list<string> get_all_tables(1: string db_name) throws (1: MetaException o1)
  list<string> get_tables(1: string db_name, 2: string pattern) throws (1: MetaException o1)
  list<string> get_tables_by_type(1: string db_name, 2: string pattern, 3: string tableType)
    throws (1: MetaException o1)
  list<TableMeta> get_table_meta(1: string db_patterns, 2: string tbl_patterns, 3: list<string> tbl_types)
    throws (1: MetaException o1)
  Table get_table(1: string dbname, 2: string tbl_name) throws (1: MetaException o1, 2: NoSuchObjectException o2)
  GetTableResult get_table_req(1: GetTableRequest req) throws (1: MetaException o1, 2: NoSuchObjectException o2)
  list<Table> get_table_objects_by_name(1: string dbname, 2: list<string> tbl_names)
    throws (1: MetaException o1, 2: InvalidOperationException o2, 3: UnknownDBException o3)
  GetTablesResult get_table_objects_by_name_req(1: GetTablesRequest req)
    throws (1: MetaException o1, 2: InvalidOperationException o2, 3: UnknownDBException o3)

  list<Partition> get_partitions(1: string db_name, 2: string tbl_name, 3: i16 max_parts)
    throws (1: NoSuchObjectException o1, 2: MetaException o2)
  list<Partition> get_partitions_with_auth(
    1: string db_name, 2: string tbl_name, 3: i16 max_parts, 4: string user_name, 5: list<string> group_names)
    throws (1: NoSuchObjectException o1, 2: MetaException o2)
  list<Partition> get_partitions_ps_with_auth(
    1: string db_name, 2: string tbl_name, 3: list<string> part_vals, 4: i16 max_parts, 5: string user_name,
    6: list<string> group_names)
    throws (1: NoSuchObjectException o1, 2: MetaException o2)
  list<Partition> get_partitions_by_filter(1: string db_name, 2: string tbl_name, 3: string filter, 4: i16 max_parts)
    throws (1: MetaException o1, 2: NoSuchObjectException o2)
  list<Partition> get_partitions_by_names(1: string db_name, 2: string tbl_name, 3: list<string> names)
    throws (1: MetaException o1, 2: NoSuchObjectException o2)
  PartitionsByExprResult get_partitions_by_expr(1: PartitionsByExprRequest req)
    throws (1: MetaException o1, 2: NoSuchObjectException o2)
  Partition get_partition(1: string db_name, 2: string tbl_name, 3: list<string> part_vals)
    throws (1: MetaException o1, 2: NoSuchObjectException o2)
  Partition get_partition_with_auth(
    1: string db_name, 2: string tbl_name, 3: list<string> part_vals, 4: string user_name,
    5: list<string> group_names)
    throws (1: MetaException o1, 2: NoSuchObjectException o2)
  list<string> get_partition_names(1: string db_name, 2: string tbl_name, 3: i16 max_parts)
    throws (1: MetaException o2)
  list<string> get_partition_names_ps(1: string db_name, 2: string tbl_name, 3: list<string> part_vals, 4: i16 max_parts)
    throws (1: MetaException o1, 2: NoSuchObjectException o2)

  GetAllFunctionsResponse get_all_functions() throws (1: MetaException o1)
  list<string> get_functions(1: string dbName, 2: string pattern) throws (1: MetaException o1)
  Function get_function(1: string dbName, 2: string funcName) throws (1: MetaException o1, 2: NoSuchObjectException o2)

  // Calls that change something. They are known so that the refusal has words, and costs no connection.
  void create_database(1: Database database)
    throws (1: AlreadyExistsException o1, 2: InvalidObjectException o2, 3: MetaException o3)
  void alter_database(1: string dbname, 2: Database db) throws (1: MetaException o1, 2: NoSuchObjectException o2)
  void drop_database(1: string name, 2: bool deleteData, 3: bool cascade)
    throws (1: NoSuchObjectException o1, 2: InvalidOperationException o2, 3: MetaException o3)
  void create_table(1: Table tbl)
    throws (
      1: AlreadyExistsException o1, 2: InvalidObjectException o2, 3: MetaException o3, 4: NoSuchObjectException o4)
  void create_table_with_environment_context(1: Table tbl, 2: EnvironmentContext environment_context)
    throws (
      1: AlreadyExistsException o1, 2: InvalidObjectException o2, 3: MetaException o3, 4: NoSuchObjectException o4)
  void alter_table(1: string dbname, 2: string tbl_name, 3: Table new_tbl)
    throws (1: InvalidOperationException o1, 2: MetaException o2)
  void alter_table_with_environment_context(
    1: string dbname, 2: string tbl_name, 3: Table new_tbl, 4: EnvironmentContext environment_context)
    throws (1: InvalidOperationException o1, 2: MetaException o2)
  void drop_table(1: string dbname, 2: string name, 3: bool deleteData)
    throws (1: NoSuchObjectException o1, 2: MetaException o3)
  void drop_table_with_environment_context(
    1: string dbname, 2: string name, 3: bool deleteData, 4: EnvironmentContext environment_context)
    throws (1: NoSuchObjectException o1, 2: MetaException o3)
  AddPartitionsResult add_partitions_req(1: AddPartitionsRequest request)
    throws (1: InvalidObjectException o1, 2: AlreadyExistsException o2, 3: MetaException o3)
  void alter_partitions(1: string db_name, 2: string tbl_name, 3: list<Partition> new_parts)
    throws (1: InvalidOperationException o1, 2: MetaException o2)
  bool drop_partition_with_environment_context(
    1: string db_name, 2: string tbl_name, 3: list<string> part_vals, 4: bool deleteData,
    5: EnvironmentContext environment_context)
    throws (1: NoSuchObjectException o1, 2: MetaException o2)
}
